"""FSDP on 1 to 4 ranks: the losses of plain data parallelism, whatever the strategy; the order in which it sends; what
it holds, sends and takes; and which options do not go together."""

import itertools
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from closeness import check_equal
from jobs import engines
from jobs import fsdp as jobs
from minidist.engine import Engine, Settings
from minidist.mpi.clock import Clock
from minidist.papers import fsdp as paper
from ranks import launch

# Of the cases every eighth on four ranks, and so every variant; with -m slow, all on one to four.
RANKS = pytest.mark.parametrize(
    ("n", "every"), [(4, 8), *(pytest.param(n, 1, marks=pytest.mark.slow) for n in (1, 2, 3, 4))]
)
BATCH = 15  # 15 rows, and micro-batches of 5, are not divisible by 2 or 4 ranks
BACK = ("pre", "post", "none")
VARIANTS = [
    *(
        f"full_shard --backward-prefetch {back}{forward}"
        for back, forward in itertools.product(BACK, ("", " --forward-prefetch", " --forward-prefetch --prefetch 2"))
    ),
    *("shard_grad_op", "shard_grad_op --forward-prefetch"),
    *(f"hybrid_shard --backward-prefetch {back}" for back in BACK),
    "hybrid_shard --prefetch 2 --forward-prefetch",
    "no_shard",
]
MODELS = ("gpt", "gpt untied", "llama")
RECOMPUTE = ("none", "selective", "full")


def cases(precision: str) -> list[list[Any]]:
    """Every variant with every accumulation and recomputation; models go round."""
    accumulations = ((1, ""), (3, ""), (3, " --no-sync"))
    return [
        [words + no_sync, model, precision, accumulate, recompute]
        for i, ((accumulate, no_sync), words) in enumerate(itertools.product(accumulations, VARIANTS))
        for j, recompute in enumerate(RECOMPUTE)
        for model in (MODELS if words == "no_shard" else MODELS[(i + j) % 3 :][:1])
        if not (no_sync and words == "no_shard")
    ]


EXACT, MIXED = cases("fp64"), cases("mixed")


def twin(case: list[Any], n: int) -> list[Any]:
    """The case of another engine that has the same sums in the same order: with one micro-batch, or where whole
    gradients add up, data parallelism; where each micro-batch reduces, ZeRO-3; across hosts, ZeRO-3 on hosts."""
    words, model, precision, accumulate, recompute = case
    whole = accumulate == 1 or "no-sync" in words or words == "no_shard"
    name = "data_parallel" if whole else "zero3"
    if words.startswith("hybrid_shard") and n in (2, 4) and "no-sync" not in words:
        name = "zero3 on hosts"
    return [name, model, precision, accumulate, recompute]


def some(of: list[list[Any]], n: int, every: int) -> list[list[Any]]:
    return of[n % every :: every]


@cache
def on_ranks(n: int, every: int) -> dict[str, Any]:
    """All cases in one job."""
    mixed = some(MIXED, n, every)
    twins = {repr(twin(case, n)): twin(case, n) for case in mixed}
    cases = [*some(EXACT, n, every), *mixed, *twins.values()]
    return launch("jobs.fsdp:train_all", n, cases, BATCH, timeout=280).values[0]


@cache
def serial(model: str, accumulate: int, recompute: str) -> dict[str, Any]:
    settings = engines.settings("fp64", "adamw", accumulate, clip=0.5, recompute=recompute)
    return engines.train(Engine(engines.model(model), settings), BATCH)


# ---- the same losses -------------------------------------------------------------------------------------------------


def test_the_matrix_is_whole() -> None:
    """Each strategy meets tied and untied models under each accumulation and each recomputation."""
    for strategy in ("full_shard", "shard_grad_op", "hybrid_shard", "no_shard"):
        met = [case for case in EXACT if case[0].startswith(strategy)]
        assert {case[1] for case in met} == set(MODELS)
        for place in (3, 4):
            assert len({(case[1], case[place]) for case in met}) == 3 * len({case[place] for case in met})


@RANKS
def test_equals_serial_training(n: int, every: int) -> None:
    for case in some(EXACT, n, every):
        check_equal(on_ranks(n, every)[repr(case)], serial(case[1], *case[3:]), name=repr(case))


@RANKS
def test_equals_other_engines_to_the_last_bit_in_mixed_precision(n: int, every: int) -> None:
    """Whole gradients that add up on each rank, then on the host, then across, have an order that no other has."""
    compared = set()
    for case in some(MIXED, n, every):
        if case[0].startswith("hybrid_shard") and "no-sync" in case[0] and n in (2, 4):
            continue
        found, truth = on_ranks(n, every)[repr(case)], on_ranks(n, every)[repr(twin(case, n))]
        np.testing.assert_array_equal(found["losses"], truth["losses"], err_msg=repr(case))
        assert found["bits"] == truth["bits"], case
        compared.add(twin(case, n)[0])
    assert compared == {"data_parallel", "zero3", *(["zero3 on hosts"] if n in (2, 4) else [])}


@RANKS
def test_whole_gradients_across_hosts_are_close(n: int, every: int) -> None:
    """float16 gradients have 11 bits, and the order of their sums is one of its own."""
    for case in some(MIXED, n, every):
        if case[0].startswith("hybrid_shard") and "no-sync" in case[0]:
            truth = on_ranks(n, every)[repr(twin(case, n))]
            np.testing.assert_allclose(on_ranks(n, every)[repr(case)]["losses"], truth["losses"], rtol=2e-3)


# ---- the order -------------------------------------------------------------------------------------------------------

# A model of embedding, two blocks and head, untied; what stands in a step's log from the head's backward on.
BACKWARD = {
    "pre": [
        *("gather head", "gather block1", "backward head", "reduce head"),
        *("gather block0", "backward block1", "reduce block1"),
        *("gather embedding", "backward block0", "reduce block0"),
        *("backward embedding", "reduce embedding"),
    ],
    "post": [
        *("gather head", "backward head", "gather block1", "reduce head"),
        *("backward block1", "gather block0", "reduce block1"),
        *("backward block0", "gather embedding", "reduce block0"),
        *("backward embedding", "reduce embedding"),
    ],
    "none": [
        *("gather head", "backward head", "reduce head"),
        *("gather block1", "backward block1", "reduce block1"),
        *("gather block0", "backward block0", "reduce block0"),
        *("gather embedding", "backward embedding", "reduce embedding"),
    ],
}
FORWARD = {
    False: [f"{what} {unit}" for unit in ("embedding", "block0", "block1", "head") for what in ("gather", "forward")],
    True: [
        *("gather embedding", "gather block0", "forward embedding"),
        *("gather block1", "forward block0", "gather head", "forward block1", "forward head"),
    ],
}


def order(words: str, accumulate: int = 1) -> list[str]:
    variants = [[f"full_shard --backward-prefetch {back}", 1] for back in BACK]
    variants += [["full_shard --forward-prefetch", 1], ["full_shard --prefetch 2 --forward-prefetch", 1]]
    variants += [["full_shard --no-sync", 2], ["shard_grad_op", 2], ["shard_grad_op --no-sync", 2]]
    return ordered(repr(variants))[variants.index([words, accumulate])]


@cache
def ordered(variants: str) -> list[list[str]]:
    """One job for all of them."""
    return launch("jobs.fsdp:orders", 2, eval(variants)).values[0]


@pytest.mark.parametrize("back", BACK)
def test_the_order_of_a_backward(back: str) -> None:
    """Section 3.3.2: the next all-gather is issued before the current reduce-scatter, unless there is no prefetch."""
    assert order(f"full_shard --backward-prefetch {back}") == FORWARD[False] + BACKWARD[back]


def test_the_order_of_a_forward() -> None:
    assert order("full_shard --forward-prefetch") == FORWARD[True] + BACKWARD["pre"]


def test_two_units_ahead() -> None:
    log = order("full_shard --prefetch 2 --forward-prefetch")
    assert log[:4] == ["gather embedding", "gather block0", "gather block1", "forward embedding"]
    assert log[log.index("gather head", 8) :][:4] == ["gather head", "gather block1", "gather block0", "backward head"]


def test_without_communication_only_the_last_micro_batch_reduces() -> None:
    log = order("full_shard --no-sync", 2)
    assert log.count("gather block0") == 4
    assert [log.count(f"reduce block{i}") for i in range(2)] == [1, 1]
    assert log[: len(log) // 2].count("reduce block0") == 0


def test_what_is_not_resharded_is_gathered_once() -> None:
    """In each micro-batch; without communication, in each step, as PyTorch does it."""
    log = order("shard_grad_op", 2)
    assert (log.count("gather block0"), log.count("reduce block0")) == (2, 2)
    log = order("shard_grad_op --no-sync", 2)
    assert (log.count("gather block0"), log.count("reduce block0")) == (1, 1)


# ---- how long it takes -----------------------------------------------------------------------------------------------


def replay(b: list[int], g: list[int], r: list[int], prefetch: str) -> float:
    """A backward, event by event: an independent look at what the formulas add up."""
    channel = now = 0.0
    there: dict[int, float] = {}  # unit -> when its gather is through
    reduced = 0.0

    def send(cost: int) -> float:
        nonlocal channel
        channel = max(channel, now) + cost
        return channel

    def gather(i: int) -> None:
        if i < len(g) and g[i] and i not in there:
            there[i] = send(g[i])

    for i, compute in enumerate(b):
        gather(i)
        now = max(now, there.get(i, 0.0))
        if prefetch == "pre":
            gather(i + 1)
        now = max(now + compute, reduced)  # the gradient before has gone when there is another
        if prefetch == "post":
            gather(i + 1)
        reduced = send(r[i])
    return max(now, reduced)


@pytest.mark.parametrize("back", BACK)
def test_the_formulas_of_a_backward(back: str) -> None:
    draw = random.Random(7)
    for _ in range(500):
        n = draw.randint(1, 6)
        b, g, r = ([draw.randint(1, 9) for _ in range(n)] for _ in range(3))
        if draw.random() < 0.5:
            g[-1] = 0  # a tied embedding is there
        if draw.random() < 0.2:
            g = [0] * n  # all is there
        if draw.random() < 0.2:
            r = [0] * n  # nothing is reduced yet
        assert paper.backward_time(b, g, r, back) == replay(b, g, r, back), (b, g, r)
        ahead = "pre" if back == "pre" else "none"
        assert paper.forward_time(b, g, back == "pre") == replay(b, g, [0] * n, ahead)


def test_of_equal_units_each_takes_what_the_chapter_says() -> None:
    n, b, g, r = 50, 4, 3, 2
    took = {back: paper.backward_time([b] * n, [g] * n, [r] * n, back) for back in BACK}
    each = {"none": b + r + g, "post": max(b, r) + g, "pre": max(b, r + g)}
    for back in BACK:
        assert abs(took[back] - n * each[back]) <= b + g + r
    assert took["pre"] < took["post"] < took["none"]


def test_the_channel_of_a_clock() -> None:
    clock = Clock(latency=1.0, bandwidth=10.0)
    first, second = clock.start(40), clock.start(20)  # one after the other
    assert (first, second, clock.now) == (5.0, 8.0, 0.0)
    clock.work(6.0)
    clock.wait(first)  # is through already
    assert clock.now == 6.0
    clock.wait(second)
    assert clock.now == 8.0
    clock.work(4.0)
    assert clock.start(10) == 14.0  # not before it was started


# ---- as a reader types it (claims of all options: test_lines.toml) ---------------------------------------------------


def test_overlap_is_worth_what_the_clock_says(tmp_path: Path) -> None:
    """And what the paper's formula says of hosts, which is more, is printed."""
    sizes = "--layers 2 --width 12 --heads 2 --context 8 --batch 24 --steps 2"
    ways = ("", "--prefetch 2", *(f"--backward-prefetch {way}" for way in ("post", "none")))
    ways += ("--accumulate 3", "--accumulate 3 --no-sync", "--recompute log", "--strategy hybrid_shard")
    lines = [f"fsdp {way} {sizes}" for way in ways]
    reports = launch("jobs.chapters:command_lines", 4, lines, str(tmp_path)).values[0].values()
    found = dict(zip(ways, reports, strict=True))
    took = {way: report["counted"][0].get("time") for way, report in found.items()}
    assert took[""] < took["--backward-prefetch post"] < took["--backward-prefetch none"]
    assert took["--prefetch 2"] <= took[""]  # nothing is claimed of it
    assert took["--accumulate 3 --no-sync"] < took["--accumulate 3"]
    for way, report in found.items():
        assert len({rank.get("time") for rank in report["counted"]}) == 1
        timed = any(claim["claim"] == "a step's time" for claim in report["claims"])
        assert timed == (way not in ("--prefetch 2", "--recompute log")), way  # there is no formula
    blocks, head = 2 * (12 * 12**2 + 13 * 12), 2 * 12
    embedding = found[""]["parameters"] - blocks - head
    assert took[""] > 3 * (embedding + blocks) + 3 * (head + embedding)  # F and twice F; the head with the embedding
    assert "to wait\nfor the wire" in found[""]["printed"]
    held = sum(rank["parameters"] for rank in found["--strategy hybrid_shard"]["memory"]) // 2
    assert f"{paper.across_hosts_as_printed(held, 4, 2):,.0f}" in found["--strategy hybrid_shard"]["printed"]


@pytest.mark.parametrize(("ranks", "shard"), [(1, 1), (2, 1), (3, 3), (4, 2), (8, 4)])
def test_hosts_are_two_if_that_is_possible(ranks: int, shard: int) -> None:
    assert jobs.job_of("hybrid_shard", [], Settings(), ranks).layout.shard == shard
