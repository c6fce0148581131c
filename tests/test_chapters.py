"""The chapters' command lines, as a reader types them: losses, claims, reports, and what is said of bad input.

Expected bytes are worked out here from the shapes of the model; nothing of minidist.papers or of the engines is used.
"""

import itertools
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from alone import train_alone
from jobs import chapters, engines
from minidist import Finished, UsageError
from minidist.__main__ import CHAPTERS
from minidist.engine import Engine
from minidist.launch.launcher import find_mpiexec
from ranks import launch

ROOT = Path(__file__).parent.parent
LETTERS = "абвгдежзиклмнопрстуфхцч"  # none of them appears in any report
TEXT = "".join(np.random.default_rng(0).choice(list(LETTERS), 3000, p=np.arange(1, 24) / 276)) + LETTERS
CONTEXT, BATCH, STEPS = 8, 14, 3
COMMON = [*("--context", "8"), *("--batch", "14"), *("--steps", "3"), *("--lr", "0.01"), *("--warmup", "1")]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def python(n: int, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`mpirun -n N python ARGUMENTS`, without mpirun if n is 0, and without a terminal."""
    mpirun = [str(Path(find_mpiexec()).with_name("mpirun")), "-n", str(n)] if n else []
    return subprocess.run(
        [*mpirun, sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        start_new_session=True,  # so that /dev/tty is not the terminal of whoever runs the tests
    )


def chapter(n: int, name: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return python(n, "-m", f"minidist.{name}", *arguments, cwd=cwd)


# ---- every chapter on 1, 2, 3, 4 and 7 ranks -------------------------------------------------------------------------

STRATEGIES = (
    "data_parallel",
    "data_parallel --reduce server",
    "zero1",
    "zero2",
    "zero3",
    "zero3 --keep-last",
    "fsdp",
    "fsdp --strategy shard_grad_op",
    "offload",
    "offload --zero 1",
    "offload --zero 3",
    "infinity",
    "infinity --zero 2",
    "infinity --zero 1",
)
RANKS = (1, 2, 3, 4, 7)
GPT = "--layers 1 --width 10 --heads 2"
LLAMA = "--model llama --layers 2 --width 12 --heads 2 --kv-heads 1"
SETTINGS = (
    f"{GPT} --precision mixed",
    f"{GPT} --untied --accumulate 2 --precision mixed",
    f"{LLAMA} --precision mixed",
    f"{GPT} --dropout 0.1 --accumulate 2 --precision fp64",
    f"{LLAMA} --optimizer sgd --precision fp64",
    f"{GPT} --untied --precision fp32",
    f"{GPT} --optimizer sgd --accumulate 2 --precision mixed",
    f"{GPT} --untied --precision bf16",
)
# Settings go round, so that each strategy and each number of ranks meets most of them.
CASES = [
    (strategy, n, SETTINGS[i % len(SETTINGS)]) for i, (strategy, n) in enumerate(itertools.product(STRATEGIES, RANKS))
]
OF_FILES = {("infinity --zero 2", 1), ("infinity --zero 1", 2), ("infinity", 4), ("infinity", 7)}  # in every run


def slow(strategy: str, n: int) -> bool:
    """On one and two ranks every other strategy is there in every run, on seven every fourth; of files a few cases."""
    if strategy.startswith("infinity"):
        return (strategy, n) not in OF_FILES
    if n == 7:
        return STRATEGIES.index(strategy) % 4 != 1
    return n in (1, 2) and STRATEGIES.index(strategy) % 2 != n % 2


class Shapes:
    """What a case's bytes follow from, counted from the definition of the models."""

    def __init__(self, settings: str, n: int) -> None:
        vocabulary = len(LETTERS)
        if "llama" in settings:
            width, depth, hidden = 12, 6, 32  # hidden: 8/3 of the width, up to the next multiple of 8
            block = (2 + 2 * 1) * depth * width + width * width + 3 * hidden * width + 2 * width
            sizes = [vocabulary * width, block, block, width + vocabulary * width]
            self.tied = False
        else:
            width, self.tied = 10, "--untied" not in settings
            # norms 2C + 2C; QKV 3C² + 3C; projection C² + C; MLP 4C² + 4C and 4C² + C
            sizes = [
                vocabulary * width + CONTEXT * width,
                12 * width * width + 13 * width,
                2 * width + (0 if self.tied else vocabulary * width),
            ]
        self.parameters = sum(sizes)
        self.units = [size if size % n == 0 else size + n - size % n for size in sizes]
        self.padded = sum(self.units)
        self.accumulate = 2 if "--accumulate 2" in settings else 1
        mixed, moments = "mixed" in settings or "bf16" in settings, 1 if "sgd" in settings else 2
        self.stored = 2 if mixed else 4 if "fp32" in settings else 8  # bytes of a parameter, of a gradient, on the wire
        self.optimizer = 4 * (1 + moments) if mixed else self.stored * moments
        self.computed = 4 if mixed else self.stored
        self.mixed = mixed
        # What is used at the same time: the unit, and in a tied head the embedding as well.
        self.used = [*self.units[:-1], self.units[-1] + (self.units[0] if self.tied else 0)]


OTHERS = ("activations", "ends", "workspace", "kept", "all but workspace", "all")


BELOW = {"offload": 2, "infinity": 3}  # chapters that use memory below the device: the stage that is not said


def stage_of(strategy: str) -> int:
    if strategy.startswith(tuple(BELOW)):
        return int(strategy.partition("--zero ")[2] or BELOW[strategy.split()[0]])
    return int(strategy[4]) if strategy.startswith("zero") else 3 if strategy.startswith("fsdp") else 0


def expected_memory(strategy: str, n: int, shapes: Shapes) -> dict[str, int]:
    stage, psi = stage_of(strategy), shapes.padded
    if strategy.startswith(tuple(BELOW)):
        on_device = {"optimizer": 0, "gradients": shapes.stored * psi if stage == 1 else 0}
        if strategy == "infinity":  # two rooms for shards
            on_device["parameters"] = 2 * shapes.stored * max(shapes.units) // n
        return expected_memory(f"zero{stage}", n, shapes) | on_device
    fsdp = expected_of_fsdp(n, shapes, all_at_once="shard_grad_op" in strategy) if strategy.startswith("fsdp") else {}
    # A tied embedding is there from the head's backward to its own, beside each unit in between.
    together = shapes.units[0] + max(shapes.units[1:]) if shapes.tied else max(shapes.units)
    return {
        "parameters": shapes.stored * psi // (n if stage >= 3 else 1),
        "gradients": shapes.stored * psi // (n if stage >= 2 else 1),
        "optimizer": shapes.optimizer * psi // (n if stage >= 1 else 1),
        "stash": 0,
        "outer": 0,
        "persistent": 0,
        "gathered": shapes.stored * together if stage >= 3 else 0,
        "bucket": shapes.stored * together if stage >= 2 else 0,
        "messages": 0,
        "transient": shapes.stored * together * {0: 0, 1: 0, 2: 1, 3: 2}[stage],
        **fsdp,
    }


def expected_of_fsdp(n: int, shapes: Shapes, all_at_once: bool) -> dict[str, int]:
    """In a backward each unit is there with the next one, or with all that come, and the gradient of the one before is
    on its way until this one's is complete. A tied embedding, and its gradient, are there all the time."""
    tied = shapes.units[0] if shapes.tied else 0
    order = shapes.units[:0:-1] if shapes.tied else shapes.units[::-1]
    gathered = [tied + sum(order[i:] if all_at_once else order[i : i + 2]) for i in range(len(order))]
    buckets = [tied + max(order[max(i - 1, 0) : i + 1]) for i in range(len(order))]
    return {
        "gathered": shapes.stored * max(gathered),
        "messages": shapes.stored * max(shapes.units) * (n - 1) // n,
        "transient": shapes.stored * max(sum(both) for both in zip(gathered, buckets, strict=True)),
    }


def check_memory(held: dict[str, int], strategy: str, n: int, shapes: Shapes) -> None:
    """What follows from the model's shapes alone is held to the byte; the rest depends on how operations are made."""
    assert {kind: held[kind] for kind in held if kind not in OTHERS} == expected_memory(strategy, n, shapes)
    # Gradients as the backward writes them; and parameters, where arithmetic needs a wider copy of them.
    assert held["workspace"] > max(shapes.used) * shapes.computed * (2 if shapes.mixed else 1)
    states = held["parameters"] + held["gradients"] + held["optimizer"]
    assert states + held["kept"] <= held["all but workspace"] <= states + held["kept"] + held["transient"]
    assert max(held["activations"], held["ends"]) <= held["kept"] <= held["activations"] + held["ends"]
    assert held["all but workspace"] <= held["all"] <= held["all but workspace"] + held["workspace"]


def check_host(report: dict[str, Any], strategy: str, n: int, shapes: Shapes) -> None:
    """What ZeRO-Offload and ZeRO-Infinity have moved below the device, and how."""
    if strategy.startswith("infinity"):
        return check_disk(report, stage_of(strategy), n, shapes)
    if not strategy.startswith("offload"):
        assert not {"below", "moved"} & report.keys()
        return
    shard = shapes.padded // n
    states = {
        "parameters": 0 if shapes.mixed else shapes.stored * shard,
        "gradients": shapes.stored * shard,
        "optimizer": shapes.optimizer * shard,
        "messages": shapes.stored * max(shapes.units) // n,
    }
    for rank in range(n):
        assert list(report["below"][rank]) == ["host"]
        held = report["below"][rank]["host"]
        assert {kind: held[kind] for kind in states} == states
        assert held["all but workspace"] == sum(states.values())
        assert held["workspace"] > 0
        times, units = 1 if stage_of(strategy) == 1 else shapes.accumulate, len(shapes.units)
        assert report["moved"][rank] == {
            "device to host": {"gradients": {"bytes": times * shapes.stored * shard, "moves": times * units}},
            "host to device": {"parameters": {"bytes": shapes.stored * shard, "moves": units}},
        }


def check_disk(report: dict[str, Any], stage: int, n: int, shapes: Shapes) -> None:
    """Files have all that belongs to a rank, but for gradients; host memory has rooms for some shards."""
    shard, largest, copy = shapes.padded // n, max(shapes.units) // n, 0 if shapes.mixed else shapes.stored
    host = {
        "parameters": 2 * shapes.stored * largest if stage == 3 else copy * largest,
        "gradients": shapes.stored * shard,
        "optimizer": 3 * (shapes.optimizer + copy) * largest,
    }
    disk = {"parameters": (shapes.stored * (stage == 3) + copy) * shard, "optimizer": shapes.optimizer * shard}
    passes, times = 2 * shapes.accumulate, 1 if stage == 1 else shapes.accumulate
    states, parameters = (shapes.optimizer + copy) * shard, shapes.stored * shard
    moved = {
        "device to host": {"gradients": times * parameters},
        "host to device": {"parameters": passes * parameters if stage == 3 else parameters},
        "disk to host": {"optimizer": states} | ({"parameters": passes * parameters} if stage == 3 else {}),
        "host to disk": {"optimizer": states} | ({"parameters": parameters} if stage == 3 else {}),
    }
    for rank in range(n):
        below = report["below"][rank]
        assert list(below) == ["host", "disk"]
        assert {kind: below["host"][kind] for kind in host} == host
        assert {kind: nbytes for kind, nbytes in below["disk"].items() if kind in disk} == disk
        assert below["disk"]["all"] == sum(disk.values())
        found = report["moved"][rank]
        assert {way: {phase: count["bytes"] for phase, count in found[way].items()} for way in found} == moved
        counted = report["counted"][rank]
        if "kernel read" in counted:  # where the kernel counts
            assert counted["kernel read"] == sum(moved["disk to host"].values())
            assert counted["kernel written"] == sum(moved["host to disk"].values())


def expected_traffic(strategy: str, n: int, rank: int, shapes: Shapes) -> dict[str, dict[str, int]]:
    """Everything that a rank sends in a step: nothing else may be in the report."""
    if n == 1:
        return {}
    units, a = len(shapes.units), shapes.accumulate
    around = {"bytes": shapes.stored * shapes.padded * (n - 1) // n, "messages": units * (n - 1)}

    def times(count: int, what: dict[str, int] = around) -> dict[str, int]:
        return {key: count * value for key, value in what.items()}

    norm = {"norm": {"bytes": 8 * (n - 1), "messages": n - 1}}
    if strategy.startswith(tuple(BELOW)):
        strategy = f"zero{stage_of(strategy)}"
    if strategy == "data_parallel":
        return {"all-reduce gradients": times(2)}
    if strategy == "data_parallel --reduce server":
        whole = {"bytes": shapes.stored * shapes.padded, "messages": units}
        return {"all-reduce gradients": times(n - 1 if rank == 0 else 1, whole)}
    if strategy == "zero1":
        return norm | {"reduce-scatter gradients": around, "all-gather parameters": around}
    if strategy == "zero2":
        return norm | {"reduce-scatter gradients": times(a), "all-gather parameters": around}
    if "shard_grad_op" in strategy:
        return norm | {"all-gather forward": times(a), "reduce-scatter gradients": times(a)}
    again = times(a)
    if "--keep-last" in strategy:
        kept = [shapes.units[-1]] + ([shapes.units[0]] if shapes.tied else [])
        again["bytes"] -= a * shapes.stored * sum(kept) * (n - 1) // n
        again["messages"] -= a * len(kept) * (n - 1)
    return norm | {
        "all-gather forward": times(a),
        "all-gather backward": again,
        "reduce-scatter gradients": times(a),
    }


@cache
def serial_report(text: str, settings: str) -> dict[str, Any]:
    done = chapter(0, "train", *COMMON, *settings.split(), "--data", text, "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def numbers(value: Any) -> Iterator[Any]:
    """All leaves of a JSON document."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    else:
        yield value


def check_schema(report: dict[str, Any], name: str, n: int) -> None:
    """Exactly these fields, of these types: other programs read this."""
    assert list(report) == [
        *(
            "format",
            "chapter",
            "ranks",
            "parameters",
            "precision",
            "steps",
            "loss",
            "validation_loss",
            "unigram_entropy",
        ),
        *("step_ms", "claims", "sent", "sent_to", "received", "memory", "counted"),
        *(("below", "moved") if name in BELOW else ()),
    ]
    assert (report["chapter"], report["ranks"], report["steps"]) == (name, n, len(report["loss"]))
    assert type(report["parameters"]) is int
    assert report["precision"] in ("mixed", "bf16", "fp32", "fp64")
    assert all(type(loss) is float for loss in [*report["loss"], report["validation_loss"], report["unigram_entropy"]])
    assert report["step_ms"].keys() == {"median", "min"}
    assert report["step_ms"]["median"] >= report["step_ms"]["min"] > 0
    for claim in report["claims"]:
        assert list(claim) == ["source", "claim", "formula", "expected", "counted", "unit", "scope", "holds"]
        assert all(type(claim[key]) is str for key in ("source", "claim", "formula", "unit"))
        assert claim["holds"] is (claim["expected"] == claim["counted"])
    assert len(report["sent"]) == len(report["sent_to"]) == len(report["memory"]) == len(report["counted"]) == n
    for rank in report["sent"]:
        assert all(counts.keys() == {"bytes", "messages"} for counts in rank.values())
    for by_phase, by_peer in zip(report["sent"], report["sent_to"], strict=True):
        assert sum(counts["bytes"] for counts in by_phase.values()) == sum(by_peer.values())
    kinds = {*expected_memory("", 1, Shapes("", 1)), *OTHERS}
    assert all(rank.keys() == kinds for rank in report["memory"])
    assert all(type(number) is int for number in numbers([report["sent"], report["memory"]]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("reports"))


@cache
def in_one_job(n: int, later: bool, text: str, folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """{(strategy, settings): status, what was printed, report} of all cases of so many ranks, those of every run or the
    slow ones: MPI is started once."""
    cases = [(strategy, settings) for strategy, ranks, settings in CASES if ranks == n and slow(strategy, n) == later]
    lines = [f"{strategy} {' '.join(COMMON)} {settings} --data {text}" for strategy, settings in cases]
    found = launch("jobs.chapters:command_lines", n, lines, folder, timeout=300).values[0]
    assert sorted(os.listdir(folder)) == sorted(f"{n}-{i}.json" for i in range(len(lines)))
    for file in os.listdir(folder):
        os.unlink(os.path.join(folder, file))
    return dict(zip(cases, found.values(), strict=True))


def alone(strategy: str, n: int, settings: str, text: str, folder: str) -> dict[str, Any]:
    """The same of one case, as a reader starts it."""
    name, *flags = strategy.split()
    done = chapter(
        n, name, *flags, *COMMON, *settings.split(), "--data", text, "--json", "report.json", cwd=Path(folder)
    )
    assert done.stderr == ""
    assert os.listdir(folder) == ["report.json"]
    report = json.loads(Path(folder, "report.json").read_text(encoding="utf-8"))
    os.unlink(os.path.join(folder, "report.json"))
    return {"status": done.returncode, "printed": done.stdout, **report}


@pytest.mark.parametrize(
    ("strategy", "n", "settings"),
    [pytest.param(*case, marks=[pytest.mark.slow] * slow(*case[:2])) for case in CASES],
)
def test_a_chapter(strategy: str, n: int, settings: str, text: str, folder: str) -> None:
    check(in_one_job(n, slow(strategy, n), text, folder)[strategy, settings], strategy, n, settings, text)


@pytest.mark.parametrize(
    ("strategy", "n", "settings"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case[0] not in ("data_parallel", "zero3")))
        for case in CASES
        if case[1] == 3
    ],
)
def test_a_chapter_as_a_reader_starts_it(strategy: str, n: int, settings: str, text: str, folder: str) -> None:
    check(alone(strategy, n, settings, text, folder), strategy, n, settings, text)


def check(report: dict[str, Any], strategy: str, n: int, settings: str, text: str) -> None:
    """Everything that a report of a case must say."""
    name, printed = strategy.split()[0], report.pop("printed")
    assert report.pop("status") == 0
    check_schema(report, name, n)
    assert report["claims"]
    assert all(claim["holds"] for claim in report["claims"])
    assert printed.count("✓") == len(report["claims"])
    assert "✗" not in printed
    assert "does not hold" not in printed

    shapes = Shapes(settings, n)
    assert report["parameters"] == shapes.parameters
    for rank in range(n):
        check_memory(report["memory"][rank], strategy, n, shapes)
        traffic = expected_traffic(strategy, n, rank, shapes)
        assert report["sent"][rank] == traffic
        assert report["received"][rank] == sum(counts["bytes"] for counts in traffic.values())  # as much as it sends
    check_host(report, strategy, n, shapes)

    serial = serial_report(text, settings)
    assert report["unigram_entropy"] == serial["unigram_entropy"]
    tolerance = {"fp64": 1e-12, "fp32": 1e-5, "mixed": 2e-3, "bf16": 2e-3}[report["precision"]]
    for loss in ("loss", "validation_loss"):
        np.testing.assert_allclose(report[loss], serial[loss], rtol=tolerance, atol=0)


def test_serial_training_reports_in_the_same_form(text: str) -> None:
    """It learns, and it makes no claims: there is nothing to send and nothing to divide."""
    for settings in SETTINGS:
        report, shapes = serial_report(text, settings), Shapes(settings, 1)
        check_schema(report, "train", 1)
        assert (report["claims"], report["sent"], report["parameters"]) == ([], [{}], shapes.parameters)
        check_memory(report["memory"][0], "", 1, shapes)
        assert len(report["loss"]) == STEPS
        if "sgd" not in settings:
            assert report["validation_loss"] < report["loss"][0]


def test_the_same_command_gives_the_same_losses(text: str) -> None:
    settings = f"{SETTINGS[0]} --dropout 0.2"
    one, two = (
        json.loads(chapter(2, "zero3", *COMMON, *settings.split(), "--data", text, "--json", "-").stdout)
        for _ in range(2)
    )
    assert (one["loss"], one["validation_loss"]) == (two["loss"], two["validation_loss"])


@pytest.mark.parametrize(
    ("n", "size"),
    [
        (1, 0),
        (3, 0),
        (4, 1_000_003),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in ((1, 1000), (4, 1), (7, 1000))),
    ],
)
def test_the_ring_chapter(n: int, size: int, tmp_path: Path) -> None:
    done = chapter(n, "ring", "--size", str(size), "--json", "report.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report) == ["format", "chapter", "ranks", "claims"]
    assert (report["chapter"], report["ranks"]) == ("ring", n)
    assert len(report["claims"]) == 9 * 6
    assert all(claim["holds"] for claim in report["claims"])
    counted = {(claim["source"], claim["claim"]): claim["counted"] for claim in report["claims"]}
    # What the server must carry, and what no algorithm can beat (all ranks together, 4 bytes an element).
    assert counted["all-reduce server", "sent by the busiest rank"] == (n - 1) * size * 4
    assert counted["all-reduce ring", "sent in all"] == 2 * (n - 1) * size * 4
    assert counted["all-reduce ring", "calls of the busiest rank"] == 2 * (n - 1)
    assert done.stdout.count("✓") == 9 + 1  # and one in the legend


# ---- claims that do not hold -----------------------------------------------------------------------------------------

EVERYTHING = {("ZeRO §7", "all that is sent"), ("ZeRO §7", "all that arrives")}
WRONG = {
    "a formula that forgets the reduce-scatter": (
        """
        from minidist.programs.chapter import find, start
        from minidist import zero1
        from minidist.papers import zero
        right = zero.volume
        zero.volume = lambda *arguments: {**right(*arguments), "reduce-scatter gradients": 0}
        chapter = find("zero1")
        chapter.make = lambda job, comm: zero1.ZeRO1(job.units, job.settings, comm)
        start(chapter)
        """,
        {("ZeRO §7", "reduce-scatter gradients"), *EVERYTHING},
    ),
    "one byte too many from one rank": (
        """
        import numpy as np
        from minidist.programs.chapter import find, start
        from minidist import zero2
        class Stray(zero2.ZeRO2):
            def after_update(self):
                super().after_update()
                with self.comm.phase("all-gather parameters"):
                    if self.comm.rank == 1:
                        self.comm.send(np.zeros(1, np.int8), 0)
                    elif self.comm.rank == 0:
                        self.comm.recv(np.zeros(1, np.int8), 1)
        chapter = find("zero2")
        chapter.make = lambda job, comm: Stray(job.units, job.settings, comm)
        start(chapter)
        """,
        {("ZeRO §7", "all-gather parameters"), *EVERYTHING},
    ),
    "a stage 3 that releases nothing after the forward": (
        """
        from minidist.programs.chapter import find, start
        from minidist import zero3
        class Hoarder(zero3.ZeRO3):
            def forget(self, flat):
                if self.direction == "backward":
                    super().forget(flat)
        chapter = find("zero3")
        chapter.make = lambda job, comm: Hoarder(job.units, job.settings, comm)
        start(chapter)
        """,
        {
            ("FSDP §3.2.1", "peak gathered"),
            ("ZeRO §7", "all-gather backward"),
            *EVERYTHING,
        },
    ),
    "a stage 2 that keeps whole gradients": (
        """
        import numpy as np
        from minidist.programs.chapter import find, start
        from minidist import zero2
        class Whole(zero2.ZeRO2):
            def allocate(self, flat, start):
                super().allocate(flat, start)
                flat.grad = np.zeros(flat.padded, flat.param.dtype)[self.piece(flat)]
        chapter = find("zero2")
        chapter.make = lambda job, comm: Whole(job.units, job.settings, comm)
        start(chapter)
        """,
        {("ZeRO §5.2", "gradients"), ("ZeRO Fig. 1", "together")},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_claim_that_does_not_hold_is_named_and_makes_the_exit_status_1(name: str, text: str, tmp_path: Path) -> None:
    source, failing = WRONG[name]
    lines = source.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    (tmp_path / "wrong.py").write_text("\n".join(line[indent:] for line in lines), encoding="utf-8")
    options = [*COMMON, *GPT.split(), "--layers", "2", "--data", text, "--json", "report.json"]
    done = python(2, "wrong.py", *options, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    claims = json.loads((tmp_path / "report.json").read_text())["claims"]
    assert {(claim["source"], claim["claim"]) for claim in claims if not claim["holds"]} == failing
    said = re.findall(
        r"^does not hold: (.*?), (.*?): [\d,]+ bytes promised, [\d,]+ counted$", done.stdout, re.MULTILINE
    )
    assert set(said) == failing
    assert done.stdout.count("✗") == len(failing)


# ---- overflow --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_an_overflow_skips_the_step_on_all_ranks_alike(n: int) -> None:
    """And training goes on, at the scale at which serial training does."""
    everyone = launch("jobs.chapters:all_overflow", n).values
    serial = chapters.from_too_large_a_scale(Engine(engines.model("gpt"), engines.settings("mixed", "adamw", 1, 1.0)))
    skipped = [after["updates"] for after in serial].count(0)
    assert 2 <= skipped <= 10
    # The first overflow is forgiven; each one after it halves the scale.
    scales = [2.0 ** (22 - min(step, skipped - 1)) for step in range(12)]
    for name in engines.ENGINES:
        for rank in everyone:
            after = rank[name]
            assert [step["scale"] for step in after] == scales == [step["scale"] for step in serial]
            assert [step["updates"] for step in after] == [max(0, step - skipped + 1) for step in range(12)]
            held = [step["held"] for step in after]
            assert len(set(held[:skipped])) == 1  # parameters and moments untouched
            assert len(set(held[skipped - 1 :])) == 12 - skipped + 1
        losses = [sum(rank[name][step]["loss"] for rank in everyone) for step in range(12)]
        np.testing.assert_allclose(losses, [step["loss"] for step in serial], rtol=2e-3)
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_an_overflow_on_one_rank_skips_the_step_on_all(n: int) -> None:
    """In ZeRO the element that overflowed is in one rank's shard only: the others learn of it by the norm."""
    for rank in launch("jobs.chapters:one_overflows", n).values:
        for name, after in rank.items():
            assert [step["updates"] for step in after] == [1, 1, 2], name
            assert after[0]["held"] == after[1]["held"] != after[2]["held"], name


# ---- what is printed -------------------------------------------------------------------------------------------------


def test_progress_without_a_terminal_is_plain_lines_and_a_sample_ends_the_output(text: str) -> None:
    done = chapter(2, "data_parallel", *COMMON, *GPT.split(), "--data", text, "--sample", "50")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    lines = done.stdout.splitlines()
    for step, line in enumerate(lines[:STEPS], 1):
        assert re.fullmatch(rf"step {step}/3  loss \d\.\d\d\d  \d+ ms  loss scale 65536", line)
    assert len(lines[-1]) == 50
    assert set(lines[-1]) <= set(LETTERS)
    assert not any(set(line) & set(LETTERS) for line in lines[:-1])


def test_long_runs_do_not_print_every_step(text: str) -> None:
    options = ["--layers", "1", "--width", "2", "--heads", "1", "--context", "2", "--batch", "1", "--data", text]
    done = chapter(0, "train", *options, "--steps", "47")
    steps = [int(number) for number in re.findall(r"^step +(\d+)/47 ", done.stdout, re.MULTILINE)]
    assert steps == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 47]


@pytest.mark.parametrize("name", ["zero1", "ring"])
def test_json_on_standard_output_is_nothing_but_json(name: str, text: str) -> None:
    options = ["--size", "100"] if name == "ring" else [*COMMON, *GPT.split(), "--data", text]
    done = chapter(2, name, *options, "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["chapter"] == name


@pytest.mark.parametrize(("n", "name"), [(3, "zero3"), (2, "ring"), (0, "train")])
def test_help_is_printed_once(n: int, name: str) -> None:
    done = chapter(n, name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(f"usage: python -m minidist.{name} [options]") == 1
    assert done.stdout.count("--json FILE") == 1


def refused(name: str, *arguments: str, size: int = 2) -> str:
    """What a chapter's command line says where it does no work: one line, or the help."""

    def run(main: Any, prepare: Any, **_: Any) -> None:
        prepare(SimpleNamespace(rank=0, size=size))

    program = str(ROOT / f"minidist/{name}.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, *arguments])
        patch.setattr("minidist.programs.chapter.run", run)
        patch.setattr("minidist.programs.chapter.in_one_process", lambda work: work())
        with pytest.raises((UsageError, Finished)) as ended:
            runpy.run_path(program, run_name="__main__")
    return str(ended.value)


TRAINING = [chapter.name for chapter in CHAPTERS if chapter.name not in ("mapreduce", "ring")]


@pytest.mark.parametrize("name", [chapter.name for chapter in CHAPTERS])
def test_help_is_two_screens(name: str) -> None:
    """Of 26 lines in 80 columns: a chapter's own options, then those that all share, the same in each."""
    lines = refused(name, "--help").rstrip().splitlines()
    assert len(lines) <= 52
    assert max(map(len, lines)) <= 80
    if name in TRAINING:
        headings = [line for line in lines if re.fullmatch(r"[a-z ]+:", line)]
        assert headings == ["options:"] * (headings[0] == "options:") + ["model:", "training:", "text and files:"]
        shared = [line.split() for line in lines[lines.index("model:") :] if line.startswith("  --")]
        usual = refused("train", "--help").split("model:\n")[1]
        assert [line[0] for line in shared] == re.findall(r"^  (--\S+)", usual, re.MULTILINE)
        assert len(shared) == 30
        # The same defaults, but for what the chapter's text names.
        others = [line for line in shared if " ".join(line) not in re.sub(" +", " ", usual)]
        fp32 = ("--precision", "fp32)")
        own = {"parameter_server": fp32, "local_sgd": fp32, "zero_r": ("--recompute", "full)")}
        assert [(line[0], line[-1]) for line in others] == ([own[name]] if name in own else [])


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("train", "--text my.txt", "--text is called --data now"),
        ("zero3", "--text=my.txt", "--text is called --data now"),
        ("parallel3d", "--text my.txt --dp 2", "--text is called --data now"),
        ("parallel3d", "--data 2 --pipeline 2", "--pipeline is called --pp now"),
        ("parallel3d", "--tensor 2", "--tensor is called --tp now"),
        ("parallel3d", "--data 2", "--data is the text: 2 data-parallel ranks are --dp 2 now"),
        ("pipeline", "--stages 2", "--stages is called --pp now"),
    ],
)
def test_an_old_spelling_names_the_new_one(name: str, line: str, says: str) -> None:
    assert refused(name, *line.split()) == says


def test_no_steps_is_a_report_without_claims(text: str) -> None:
    done = chapter(2, "zero2", *COMMON, *GPT.split(), "--data", text, "--steps", "0", "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert (report["loss"], report["claims"], report["sent"]) == ([], [], [{}, {}])


def test_serial_training_needs_no_mpi(text: str) -> None:
    program = (
        "import runpy, sys; sys.modules['mpi4py'] = None;"
        f" sys.argv[1:] = {[*COMMON, *GPT.split(), '--data', text, '--sample', '5']!r};"
        " runpy.run_module('minidist.train', run_name='__main__', alter_sys=True)"
    )
    done = python(0, "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert "training loss" in done.stdout


@pytest.mark.parametrize("consistency", ["bsp", "async"])
def test_a_parameter_server_that_diverges_says_so_in_a_line(consistency: str, text: str) -> None:
    """Its servers notice it, which know the whole gradient's norm, or its workers, which know their own."""
    diverging = ["--lr", "900", "--optimizer", "sgd", "--steps", "30", "--consistency", consistency]
    done = chapter(3, "parameter_server", *COMMON, *GPT.split(), "--data", text, *diverging)
    assert (done.returncode, done.stderr.splitlines()[:1]) == (
        1,
        ["minidist: error: the gradient is not finite: lower --lr"],
    )
    assert "Traceback" not in done.stderr


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that cannot be used, and checkpoints: one mixed with AdamW, 3 steps; one after the text was changed."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "empty.txt").touch()
    (folder / "short.txt").write_text("а" * 89, encoding="utf-8")  # a context of 8 wants 10 times 9
    (folder / "latin1.txt").write_bytes("Grüße. ".encode("latin-1") * 100)
    (folder / "other.txt").write_text(TEXT.replace("а", "я"), encoding="utf-8")
    (folder / "truncated.st").write_bytes(b"")
    os.mkfifo(folder / "pipe")
    for name, data in (("model.st", text), ("other.st", str(folder / "other.txt"))):
        save = ["--export", str(folder / name)]
        assert chapter(0, "train", *COMMON, *GPT.split(), "--data", data, *save).returncode == 0
    whole = (folder / "model.st").read_bytes()
    (folder / "truncated.st").write_bytes(whole[: len(whole) // 2])
    return folder


# Ranks, chapter, options after the common ones, and words that the one line must contain. FILES stands for the folder.
BAD = [
    (3, "data_parallel", "--batch 2", ["--batch 2", "3 ranks", "--batch 3"]),
    (4, "zero2", "--accumulate 7 --batch 21", ["--batch 21 in 7 micro-batches", "4 ranks", "--batch 28"]),
    (2, "zero1", "--accumulate 3", ["--batch 14", "--accumulate 3"]),
    (2, "zero3", "--width 9", ["width 9", "2 heads"]),
    (2, "zero3", "--model llama --width 10", ["width/heads = 5", "even"]),
    (2, "zero3", "--model llama --heads 4 --width 16 --kv-heads 3", ["4 heads", "3 key/value heads"]),
    (3, "zero3", "--data FILES/nowhere.txt", ["--data", "nowhere.txt", "No such file"]),
    (0, "train", "--data FILES/nowhere.txt", ["--data", "nowhere.txt", "No such file"]),
    (0, "train", "--data FILES", ["--data", "directory"]),
    (0, "train", "--data FILES/empty.txt", ["empty.txt is empty"]),
    (0, "train", "--data FILES/short.txt", ["short.txt has 89 characters", "--context 8", "90"]),
    (2, "zero1", "--data FILES/latin1.txt", ["latin1.txt is not UTF-8"]),
    (2, "zero1", "--keep-last", ["--keep-last"]),
    (4, "fsdp", "--shard 2", ["--ranks-per-host", "hybrid_shard"]),
    (4, "fsdp", "--strategy hybrid_shard --shard 3", ["4 ranks", "of 3 each", "use --ranks-per-host 2"]),
    (2, "fsdp", "--strategy zero3", ["--strategy", "zero3"]),
    (4, "expert_parallel", "--ep 3", ["4 ranks", "--ep 3", "use --ep 2"]),
    (4, "expert_parallel", "--experts 2 --ep 4", ["--ep 4 is more than --experts 2", "use --ep 2"]),
    (2, "expert_parallel", "--experts 2 --top 3", ["--top 3", "--experts 2", "use --top 2"]),
    (0, "train", "--experts 2 --top 3", ["--top 3", "--experts 2", "use --top 2"]),
    (2, "expert_parallel", "--host-limit 1", ["--host-limit", "--ranks-per-host"]),
    (4, "expert_parallel", "--ranks-per-host 3", ["--ep 4", "--ranks-per-host 3", "use 2"]),
    (4, "expert_parallel", "--ranks-per-host 2 --experts 6", ["--experts 6", "4 ranks", "use --experts 8"]),
    (4, "expert_parallel", "--ranks-per-host 2 --host-limit 3", ["--host-limit 3", "2 hosts", "use 1 to 2"]),
    (4, "expert_parallel", "--ranks-per-host 1 --top 5 --host-limit 2", ["--host-limit 2", "4 hosts", "use 3 to 4"]),
    (2, "expert_parallel", "--capacity 0", ["--capacity", "0.01"]),
    (2, "expert_parallel", "--against-plot a.png", ["--against-plot", "--against-dense 5"]),
    (4, "parallel3d", "--host-limit 1", ["--host-limit 1", "use --experts 8"]),
    (4, "parallel3d", "--experts 8 --host-limit 1", ["--host-limit", "use --ranks-per-host"]),
    (4, "parallel3d", "--experts 8 --ranks-per-host 2 --host-limit 1 --zero 3", ["--zero 3", "use --zero 2"]),
    (4, "parallel3d", "--dp 4 --ranks-per-host 2", ["--ranks-per-host", "--zero 3", "--host-limit"]),
    (4, "parallel3d", "--cp 2 --experts 8 --ep 2 --ranks-per-host 2 --host-limit 1 --tp 1", ["2 context", "use 1"]),
    (2, "fsdp", "--strategy no_shard --prefetch 2", ["no_shard", "leave"]),
    (2, "fsdp", "--strategy shard_grad_op --backward-prefetch pre", ["shard_grad_op", "leave"]),
    (2, "fsdp", "--no-sync", ["--no-sync", "--accumulate 2"]),
    (2, "fsdp", "--prefetch 0", ["--prefetch", "at least 1"]),
    (2, "zero3", "--reduce server", ["--reduce"]),
    (2, "ring", "--size -1", ["--size", "at least 0"]),
    (2, "ring", "--size many", ["--size", "many"]),
    (2, "data_parallel", "--reduce tree", ["--reduce", "tree", "ring", "server"]),
    (0, "train", "--nonsense", ["--nonsense", "--help"]),
    (0, "train", "--step 3", ["--step"]),
    (0, "train", "extra", ["extra"]),
    (0, "train", "--steps", ["--steps", "expected one argument"]),
    (0, "train", "--steps 1.5", ["--steps", "1.5"]),
    (0, "train", "--steps -1", ["--steps", "at least 0"]),
    (0, "train", "--layers 0", ["--layers", "at least 1"]),
    (0, "train", "--width -8", ["--width", "at least 1"]),
    (0, "train", "--heads 0", ["--heads", "at least 1"]),
    (0, "train", "--context 0", ["--context", "at least 1"]),
    (0, "train", "--batch 0", ["--batch", "at least 1"]),
    (0, "train", "--accumulate 0", ["--accumulate", "at least 1"]),
    (0, "train", "--seed -1", ["--seed", "at least 0"]),
    (0, "train", "--lr nan", ["--lr", "nan"]),
    (0, "train", "--lr -1", ["--lr", "-1"]),
    (0, "train", "--clip inf", ["--clip", "inf"]),
    (0, "train", "--dropout 1", ["--dropout", "0.99"]),
    (0, "train", "--precision fp8", ["--precision", "fp8"]),
    (2, "zero3", "--json nowhere/report.json", ["--json", "there is no folder nowhere"]),
    (2, "ring", "--json nowhere/report.json", ["--json", "there is no folder nowhere"]),
    (2, "zero3", "--save nowhere/run", ["--save nowhere/run", "there is no folder nowhere"]),
    (2, "zero3", "--export nowhere/model.st", ["--export", "there is no folder nowhere"]),
    (0, "train", "--save model.safetensors", ["--save model.safetensors", "--export model.safetensors"]),
    (0, "train", "--save /dev/null", ["a checkpoint is a folder"]),
    (0, "train", "--save FILES/model.st", ["a checkpoint is a folder", "--export FILES/model.st"]),
    (0, "train", "--save-every 3", ["--save-every needs --save"]),
    (0, "train", "--keep 3", ["--keep needs --save"]),
    (0, "train", "--names huggingface", ["--names needs --export"]),
    (2, "parameter_server", "--save run --save-every 3 --precision fp32", ["--save-every", "at the end"]),
    (0, "train", "--json FILES", ["--json", "cannot write"]),
    (0, "train", "--export FILES/pipe", ["--export", "no process reads this pipe"]),
    (0, "train", "--json - --sample 5", ["--json", "--sample"]),
    (0, "train", "--sample 2147483648", ["--sample", "at most 100000"]),
    (0, "train", "--data /proc/self/mem", ["cannot read --data /proc/self/mem"]),
    (2, "parameter_server", "--colocated --placement hash --virtual 1000000", ["--virtual", "may have 500 each"]),
    (2, "zero3", "--load FILES/nowhere.st", ["--load", "nowhere.st", "No such file"]),
    (0, "train", "--load FILES", ["--load FILES", "no checkpoint", "latest"]),
    (0, "train", "--load FILES/empty.txt", ["--load", "not a safetensors file"]),
    (0, "train", "--load FILES/short.txt", ["--load", "not a safetensors file"]),
    (0, "train", "--load FILES/truncated.st", ["--load", "not a safetensors file"]),
    (2, "zero1", "--load FILES/model.st --width 8", ["another model", "wte.weight of shape (23, 10)", "(23, 8)"]),
    (0, "train", "--load FILES/model.st --layers 2", ["--load", "another model", "has no block1."]),
    (0, "train", "--load FILES/model.st --model llama --heads 1", ["--load", "another model"]),
    (0, "train", "--load FILES/model.st --context 4", ["--load", "another model", "wpe.weight of shape (8, 10)"]),
    (0, "train", "--model llama --untied", ["--untied is of --model gpt"]),
    (0, "train", "--load FILES/model.st --untied", ["--load", "another model", "has no head.weight"]),
    (0, "train", "--load FILES/model.st --optimizer sgd", ["--load", "--optimizer"]),
    (0, "train", "--load FILES/other.st", ["--load", "other characters", "--data"]),
    (2, "data_parallel", "--load FILES/model.st --steps 2", ["--load", "3 steps done", "--steps"]),
    (2, "train", "", ["serial", "mpirun", "minidist.data_parallel"]),
]  # fmt: skip


def arguments_of(name: str, options: str, text: str, files: Path) -> list[str]:
    """With as many steps as this, a run that began would not end."""
    common = [] if name == "ring" else ["--data", text, *GPT.split(), *COMMON, "--steps", "1000000"]
    return [*common, *options.replace("FILES", str(files)).split()]


def named(value: Any) -> str:
    return value if type(value) is str else ""


ON_RANKS = [line for line in BAD if line[0]]


@pytest.mark.parametrize(
    ("n", "name", "options", "words"),
    [line for line in BAD if not line[0]]
    + [pytest.param(*line, marks=[pytest.mark.slow] * (i % 8 > 0)) for i, line in enumerate(ON_RANKS)],
    ids=named,
)
def test_bad_input_is_one_line(
    n: int,
    name: str,
    options: str,
    words: list[str],
    text: str,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Before any work. Serial training runs in this process, as its program does."""
    arguments = arguments_of(name, options, text, files)
    if n == 0:
        monkeypatch.chdir(tmp_path)
        status, (stdout, stderr) = train_alone(*arguments), capfd.readouterr()
    else:
        done = chapter(n, name, *arguments, cwd=tmp_path)
        status, stdout, stderr = done.returncode, done.stdout, done.stderr
    assert status == 2
    assert stdout == ""
    [line] = [line for line in stderr.split("\n") if line]
    assert line.startswith("minidist: error: ")
    assert "on rank" not in line  # all ranks agree
    for word in words:
        assert word.replace("FILES", str(files)) in line
    assert os.listdir(tmp_path) == []
    assert not list(files.glob("*.tmp"))


@pytest.mark.parametrize(
    ("n", "name", "options", "words"), [line for line in ON_RANKS if line[1] != "train"], ids=named
)
def test_bad_input_is_refused_before_there_is_a_job(
    n: int, name: str, options: str, words: list[str], text: str, files: Path
) -> None:
    """What every rank finds, on one that stands alone."""
    said = refused(name, *arguments_of(name, options, text, files), size=n)
    assert "\n" not in said.strip()
    for word in words:
        assert word.replace("FILES", str(files)) in said
