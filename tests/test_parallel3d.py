"""Grids of 1 to 8 ranks against serial training; hybrid sharding's traffic; and grids that cannot be."""

import itertools
import json
import math
import re
from bisect import bisect
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeness import check_close, check_equal, norm
from jobs import parallels3d as jobs
from minidist import UsageError, command
from minidist.engine import Engine
from minidist.layout import Layout
from minidist.pp.schedules import SCHEDULES as SCHEDULE_TABLE
from minidist.programs.chapter import find
from minidist.programs.parallel3d import WITH_FLUSH
from programs import run_chapter, run_module
from ranks import launch
from tables import table

RANKS = (1, 2, 3, 4, 6, 8)
MODELS = ("gpt", "llama tied", "gpt untied", "llama untied")
# Folded and crossed pipelines: a few here, with every stage of ZeRO in tests/pp/test_shapes.py.
SCHEDULES = [name for name in WITH_FLUSH if SCHEDULE_TABLE[name].shape == "loop"]
AT_EACH = {1: 4, 2: 6, 3: 4, 4: 4, 6: 2, 8: 2}  # cases for each grid of so many ranks


def grids(n: int) -> list[tuple[int, int, int]]:
    """All of data x pipeline x tensor = n."""
    return [(d, p, t) for d, p, t in itertools.product(range(1, n + 1), repeat=3) if d * p * t == n]


def micro_batches(d: int, p: int, schedule: str) -> list[int]:
    """Numbers that fit, the best first: those whose micro-batches cannot be shared out evenly."""
    kind = SCHEDULE_TABLE[schedule]
    fitting = [m for m in (4, 6, 3, 2, 1) if jobs.BATCH // m >= d and m >= kind.at_least(p)]
    fitting = [m for m in fitting if m % kind.micro_batches_in(p) == 0]
    return sorted(fitting, key=lambda m: jobs.BATCH // m % d == 0)


def combinations() -> Iterator[dict[str, Any]]:
    """Every grid of every number of ranks, and going round, every value of all that can be combined with it."""
    pipelined, plain = itertools.count(), itertools.count()
    every = list(itertools.product(SCHEDULES, MODELS))
    for n in RANKS:
        for d, p, t in (grid for grid in grids(n) for _ in range(AT_EACH[n])):
            i = next(pipelined if p > 1 else plain)
            schedule, model = every[i % len(every)] if p > 1 else ("1f1b", MODELS[i % 4])
            if not micro_batches(d, p, schedule):
                schedule = "1f1b"
            yield {
                "grid": (d, p, t),
                "schedule": schedule,
                "chunks": SCHEDULE_TABLE[schedule].chunks if p <= 4 else 1,
                "m": micro_batches(d, p, schedule)[0],
                "model": model,
                "zero": i // 3 % 4 if p > 1 else i // 2 % 4,
                "sequence": t > 1 and (i + i // 4) % 2 == 0,
                "precision": "fp64",
                "optimizer": ("adamw", "sgd", "sgd")[i % 3],
                "clip": 0.5 if i % 2 else 0.0,
                "recompute": ("none", "full", "selective")[(i + i // 12) % 3],
            }


def hybrid(d: int, shard: int, t: int, **more: Any) -> dict[str, Any]:
    usual = {"schedule": "1f1b", "chunks": 1, "m": 1, "model": "gpt", "zero": 3, "sequence": False, "clip": 0.5}
    usual |= {"precision": "fp64", "optimizer": "sgd", "recompute": "none"}
    return {"grid": (d, 1, t), "shard": shard, **usual, **more}


def staged(d: int, p: int, t: int, **more: Any) -> dict[str, Any]:
    return {**hybrid(d, d, t, zero=1, m=2), "grid": (d, p, t), **more}


def mixed(d: int, p: int, t: int, **more: Any) -> dict[str, Any]:
    return staged(d, p, t, **{"optimizer": "adamw", "precision": "mixed", **more})


BESIDE = [
    hybrid(4, 2, 1, optimizer="adamw"),
    hybrid(6, 2, 1, model="gpt untied"),
    hybrid(4, 2, 2, sequence=True, recompute="full"),
    staged(2, 2, 1, m=1),  # where any backward might be taken for the last one
    staged(1, 2, 2, m=1, zero=0, schedule="zb-h1", sequence=True),
    staged(2, 2, 2, m=6, zero=3, schedule="zb-h2", sequence=True, recompute="full"),
    staged(2, 2, 2, m=6, zero=2, schedule="zb-h1", clip=0.0),
    staged(4, 2, 1, zero=3, shard=2, model="llama tied"),  # hosts of two shards and two stages
    staged(4, 2, 1, zero=3, shard=2, schedule="interleaved", chunks=2, recompute="full"),
    staged(2, 2, 2, m=4, zero=2, schedule="interleaved", chunks=2, model="llama tied"),
    staged(2, 2, 2, m=4, zero=3, schedule="dualpipe", sequence=True, optimizer="adamw"),
    staged(2, 2, 2, m=4, zero=2, schedule="zb-v", chunks=2, sequence=True, recompute="full"),
    staged(4, 2, 1, m=2, zero=3, shard=2, schedule="chimera", recompute="every:2"),
    staged(2, 4, 1, m=4, zero=1, schedule="chimera", clip=0.0),
    staged(2, 2, 1, m=6, zero=0, schedule="dualpipe", model="gpt untied"),
    staged(2, 2, 1, m=4, zero=1, schedule="dualpipe-v", chunks=2, model="llama tied"),
]
MIXED = [
    mixed(1, 2, 2),
    mixed(2, 2, 1, zero=0, model="llama tied"),
    mixed(2, 2, 2, sequence=True, recompute="full"),
    mixed(1, 4, 2, schedule="zb-h2", m=6),
    mixed(2, 2, 2, zero=3, m=3),
    mixed(4, 2, 1, zero=2, m=3, schedule="zb-h1"),
]


def name_of(case: dict[str, Any]) -> str:
    return " ".join(f"{'x'.join(map(str, value)) if key == 'grid' else value}" for key, value in case.items())


CASES = {name_of(case): case for case in [*combinations(), *BESIDE, *MIXED]}


# Of the cases on two to four ranks one of five is there in every run, of those on more ranks one of seven; the others
# with -m slow.
SLOW = {
    name
    for i, (name, case) in enumerate(CASES.items())
    if i % (1, 5, 7)[bisect([2, 6], math.prod(case["grid"]))] and case["precision"] == "fp64"
} | {name_of(case) for case in MIXED[3::2]}


@cache
def on_ranks(n: int, slow: bool) -> dict[str, Any]:
    """All cases in one job, or those that are slow in one of their own."""
    here = {name: case for name, case in CASES.items() if math.prod(case["grid"]) == n and (name in SLOW) == slow}
    return launch("jobs.parallels3d:train_all", n, here, timeout=300).values[0]


@cache
def serial(model: str, sizes: jobs.Sizes, precision: str, optimizer: str, m: int, clip: float) -> dict[str, Any]:
    case = {"precision": precision, "optimizer": optimizer, "m": m, "clip": clip, "recompute": "none"}
    engine = Engine(jobs.model(model, sizes), jobs.settings(case))
    return jobs.train(engine, sizes.heads)


def truth_of(case: dict[str, Any]) -> dict[str, Any]:
    sizes = jobs.sizes_of(case["grid"], case["chunks"])
    if case["model"].startswith("gpt"):
        sizes = sizes._replace(kv_heads=0)
    return serial(case["model"], sizes, case["precision"], case["optimizer"], case["m"], case["clip"])


EXACT = [name for name, case in CASES.items() if case["precision"] == "fp64"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXACT])
def test_equals_serial_training(name: str) -> None:
    """Losses with dropout and without, norms, gradients before clipping, and parameters; copies to the last bit."""
    case = CASES[name]
    found, truth = on_ranks(math.prod(case["grid"]), name in SLOW)[name], truth_of(case)
    assert found["differ"] == []
    check_equal(found, truth, "norms", size=norm)


def test_every_grid_meets_everything() -> None:
    """What the cases above must contain, that they may say what they say."""
    exact = [CASES[name] for name in EXACT if CASES[name]["schedule"] in SCHEDULES]
    assert {case["grid"] for case in exact} >= {grid for n in RANKS for grid in grids(n)}
    assert [len(grids(n)) for n in RANKS] == [1, 3, 3, 6, 9, 10]
    pipelined = [case for case in exact if case["grid"][1] > 1]
    met = {(case["schedule"], case["model"]) for case in pipelined}
    assert met == set(itertools.product(SCHEDULES, MODELS))
    for kinds in (("model", "recompute"), ("zero", "optimizer"), ("schedule", "recompute")):
        met = {tuple(case[kind] for kind in kinds) for case in pipelined}
        every = [{case[kind] for case in exact} for kind in kinds]
        assert met == set(itertools.product(*every)), kinds
    assert {(case["sequence"], case["zero"]) for case in pipelined} == set(itertools.product((False, True), range(4)))
    assert any(case["chunks"] == 2 and case["grid"][0] > 1 and case["grid"][2] > 1 for case in pipelined)
    clipped = [case for case in pipelined if case["optimizer"] == "sgd" and case["clip"]]
    assert all(max(truth_of(case)["norms"]) > case["clip"] ** 2 for case in clipped)  # clipping does something
    assert len(clipped) > 5


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in map(name_of, MIXED)]
)
def test_mixed_precision_is_close_to_serial_training(name: str) -> None:
    case = CASES[name]
    check_close(on_ranks(math.prod(case["grid"]), name in SLOW)[name], truth_of(case), gradients=1e-2)


def test_an_overflow_on_one_rank_skips_the_step_on_all() -> None:
    """The last rank's, in the last stage: others learn of it by the norm, along every axis."""
    cases = [mixed(2, 2, 2, zero=zero) for zero in (0, 1)]
    for rank in launch("jobs.parallels3d:overflow", 8, cases, timeout=60).values:
        for after in rank:
            assert [step["updates"] for step in after] == [1, 1, 2]
            assert after[0]["held"] == after[1]["held"] != after[2]["held"]


# ---- the grid --------------------------------------------------------------------------------------------------------


@given(*[st.integers(1, 4)] * 5)
def test_every_rank_has_a_place_of_its_own(hosts: int, shard: int, pp: int, cp: int, tp: int) -> None:
    """In the order of counting: the last axis first."""
    layout = Layout(hosts * shard, pp, cp, tp, hosts)
    assert [layout.place(rank) for rank in range(layout.ranks)] == [
        *itertools.product(*map(range, (hosts, shard, pp, cp, tp)))
    ]


def test_communicators_run_along_their_axes() -> None:
    """rank = (data·p + stage)·t + part: tensor parallelism is innermost, neighbours."""
    for rank, found in enumerate(launch("jobs.parallels3d:along_axes", 8, timeout=60).values):
        data, stage, part = rank // 4, rank // 2 % 2, rank % 2
        assert found["place"] == {"data": data, "pipeline": stage, "tensor": part}
        assert found["tensor"] == [4 * data + 2 * stage, 4 * data + 2 * stage + 1]
        assert found["pipeline"] == [4 * data + part, 4 * data + 2 + part]
        assert found["data"] == [2 * stage + part, 4 + 2 * stage + part]
        assert found["both"] == [2 * stage, 2 * stage + 1, 4 + 2 * stage, 5 + 2 * stage]
        assert found["none"] == [rank]


# ---- the chapter -----------------------------------------------------------------------------------------------------


SMALL = "--layers 2 --width 24 --heads 6 --context 6 --batch 8 --steps 2"


def test_counts_by_hand() -> None:
    """What each of 2 x 2 x 2 ranks sends in float16, holds, and waits. Stages: embedding and two blocks; two blocks and
    the tied head. b·s·h = 1·8·24 for each of 4 micro-batches; blocks of 12·24² + 13·24 parameters."""
    sizes = "--layers 4 --width 24 --heads 4 --context 8 --batch 8 -m 4 --steps 2 --json -"
    done = run_chapter(f"parallel3d --dp 2 --pp 2 --tp 2 --zero 1 {sizes}", 8)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    rest = 4 * (12 * 24**2 + 13 * 24) + 8 * 24 + 2 * 24
    vocabulary = (report["parameters"] - rest) // 24
    matrix = (vocabulary + 1) // 2 * 24  # of which the last stage has a copy
    block = (12 * 24**2 + 7 * 24) // 2 + 6 * 24
    bsh = 1 * 8 * 24
    for rank in range(8):
        first, held, sent = rank // 2 % 2 == 0, report["memory"][rank], report["sent"][rank]
        parameters = matrix + 2 * block + (8 * 24 if first else 2 * 24)
        assert held["parameters"] == held["gradients"] == 2 * parameters
        assert held["optimizer"] == 12 * parameters // 2
        there, back = ("activations", "gradients") if first else ("gradients", "activations")
        assert sent[there] == {"bytes": 2 * bsh * 4, "messages": 4}
        assert back not in sent
        # An all-reduce of two ranks is two messages of half of it: four in each of two layers, and at either end one.
        everything = [sent[name] for name in sent if name.startswith(("layers", "ends"))]
        assert sum(entry["messages"] for entry in everything) == 2 * (4 * 2 + 1) * 4
        assert sum(entry["bytes"] for entry in everything) == 2 * bsh * (4 * 2 + 1) * 4
        assert sent["shared gradients"]["bytes"] == 2 * matrix // 2
        assert sent["reduce-scatter gradients"]["bytes"] == 2 * parameters // 2
        assert sent["all-gather parameters"]["bytes"] == 2 * parameters // 2
        assert [sent[name] for name in ("norm", "pipeline norm", "tensor norm")] == [{"bytes": 8, "messages": 1}] * 3
        assert ("loss: all-reduce" in sent) is not first
        counts = report["counted"][rank]
        assert counts["busy"] == 4 * 3
        assert counts["in_flight"] == (2 if first else 1)
    step = max(c["end"] for c in report["counted"]) - min(c["start"] for c in report["counted"])
    assert step == (4 + 2 - 1) * 3  # the work of a stage, and once the way there and back


@pytest.mark.parametrize(("w", "g"), [*(pytest.param(w, w // 2, marks=pytest.mark.slow) for w in (4, 8)), (6, 3)])
def test_what_hybrid_sharding_sends_to_other_hosts(w: int, g: int) -> None:
    """2M(W-G)/(GW) bytes from each rank, M being all parameters; not the 2M(W-1)/(GW) that the paper prints."""
    done = run_chapter(f"parallel3d {SMALL} --json - --dp {w} --zero 3 --shard {g} --untied", w)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    m = 2 * report["parameters"]  # bytes of float16; every unit divides by W, so nothing is padded
    for rank, sent in enumerate(report["sent_to"]):
        left_host = sum(nbytes for peer, nbytes in sent.items() if int(peer) // g != rank // g)
        assert left_host == 2 * m * (w - g) // (g * w)


def test_what_is_printed() -> None:
    """In 80 columns, with the stages' clocks."""
    done = run_chapter("parallel3d --steps 2 --pp 2 --tp 2 --layers 2 --width 16 --batch 8 -m 4", 4)
    assert done.returncode == 0, done.stderr
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 80
    legend = " ".join(done.stdout.split()).rpartition(" B: bytes; ")[2]
    assert all(
        f"; {meaning}" in legend for meaning in ("p, K: stages, 2;", "t: tensor ranks, 2;", "W: data ranks, 1 (")
    )
    assert [line.rstrip() for line in done.stdout.splitlines()[-2:]] == [
        "stage 0  F0F1    B0W0F2B1W1F3B2W2  B3W3",
        "stage 1    F0B0W0F1B1W1F2B2W2F3B3W3",
    ]


# ---- the command line ------------------------------------------------------------------------------------------------


def prepare(n: int, line: str) -> command.Job:
    job: command.Job = find("parallel3d").job(line.split(), n)
    return job


@pytest.mark.parametrize(("n", "line", "grid"), table(__file__, "open_axes_are_filled"))
def test_open_axes_are_filled(n: int, line: str, grid: list[int]) -> None:
    layout = prepare(n, line).layout
    assert [layout.dp, layout.pp, layout.tp] == grid


BAD = table(__file__, "bad")


@pytest.mark.parametrize(("n", "line", "says"), BAD)
def test_what_cannot_work_is_said_with_what_would(n: int, line: str, says: str) -> None:
    """And what is said to work does."""
    with pytest.raises(UsageError) as refused:
        prepare(n, line)
    message = str(refused.value)
    assert says in message
    assert "\n" not in message
    if grid := re.search(r"--dp \d+ --pp \d+ --tp \d+$", message):
        prepare(n, f"{line} {grid[0]}")
    if options := re.search(r": use (--[a-z-]+ \d+( --[a-z-]+ \d+)*)", message):
        prepare(n, f"{line} {options[1]}")
    if ranks := re.search(r": use mpirun -n (\d+)", message):
        prepare(int(ranks[1]), line)
    if "--dp" in line or "--tp" in line or "--pp" in line:
        assert grid or options or ranks or "leave out --chunks" in message


def test_a_refusal_is_one_line_from_all_ranks() -> None:
    done = run_module("minidist.parallel3d --dp 3 --tp 2", 4)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "minidist: error: --dp 3 x --tp 2 does not make 4 ranks: use mpirun -n 6, or --dp 2 --pp 1 --tp 2\n"
    )
