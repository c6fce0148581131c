"""The chapters' command lines, as a reader types them: losses, claims, reports, and what is said of bad input.

Expected bytes are worked out here from the shapes of the model; nothing of minidist.papers or of the engines is used.
"""

import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import chapters, engines
from minidist.engine import Engine
from programs import run_chapter, run_python
from ranks import launch

LETTERS = "абвгдежзиклмнопрстуфхцч"  # none of them appears in any report
TEXT = "".join(np.random.default_rng(0).choice(list(LETTERS), 3000, p=np.arange(1, 24) / 276)) + LETTERS
CONTEXT, BATCH, STEPS = 8, 14, 3
COMMON = [*("--context", "8"), *("--batch", "14"), *("--steps", "3"), *("--lr", "0.01"), *("--warmup", "1")]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def chapter(n: int, name: str, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """A chapter on N ranks, by one of the two doors; serial training if n is 0."""
    return run_chapter([name, *arguments], n, **how)


# ---- every chapter on 1, 2, 3, 4 and 7 ranks -------------------------------------------------------------------------

STRATEGIES = ("data_parallel", "data_parallel --reduce server", "zero1", "zero2", "zero3", "zero3 --keep-last")
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


def slow(strategy: str, n: int) -> bool:
    """On one and two ranks every other strategy is there in every run, on seven every fourth."""
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


def stage_of(strategy: str) -> int:
    return int(strategy[4]) if strategy.startswith("zero") else 0


def expected_memory(strategy: str, n: int, shapes: Shapes) -> dict[str, int]:
    stage, psi = stage_of(strategy), shapes.padded
    # A tied embedding is there from the head's backward to its own, beside each unit in between.
    together = shapes.units[0] + max(shapes.units[1:]) if shapes.tied else max(shapes.units)
    return {
        "parameters": shapes.stored * psi // (n if stage >= 3 else 1),
        "gradients": shapes.stored * psi // (n if stage >= 2 else 1),
        "optimizer": shapes.optimizer * psi // (n if stage >= 1 else 1),
        "stash": 0,
        "outer": 0,
        "error": 0,
        "secondary": 0,
        "persistent": 0,
        "gathered": shapes.stored * together if stage >= 3 else 0,
        "bucket": shapes.stored * together if stage >= 2 else 0,
        "messages": 0,
        "transient": shapes.stored * together * {0: 0, 1: 0, 2: 1, 3: 2}[stage],
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


def expected_traffic(strategy: str, n: int, rank: int, shapes: Shapes) -> dict[str, dict[str, int]]:
    """Everything that a rank sends in a step: nothing else may be in the report."""
    if n == 1:
        return {}
    units, a = len(shapes.units), shapes.accumulate
    around = {"bytes": shapes.stored * shapes.padded * (n - 1) // n, "messages": units * (n - 1)}

    def times(count: int, what: dict[str, int] = around) -> dict[str, int]:
        return {key: count * value for key, value in what.items()}

    norm = {"norm": {"bytes": 8 * (n - 1), "messages": n - 1}}
    if strategy == "data_parallel":
        return {"all-reduce gradients": times(2)}
    if strategy == "data_parallel --reduce server":
        whole = {"bytes": shapes.stored * shapes.padded, "messages": units}
        return {"all-reduce gradients": times(n - 1 if rank == 0 else 1, whole)}
    if strategy == "zero1":
        return norm | {"reduce-scatter gradients": around, "all-gather parameters": around}
    if strategy == "zero2":
        return norm | {"reduce-scatter gradients": times(a), "all-gather parameters": around}
    again = times(a)
    if "--keep-last" in strategy:
        kept = [shapes.units[-1]] + ([shapes.units[0]] if shapes.tied else [])
        again["bytes"] -= a * shapes.stored * sum(kept) * (n - 1) // n
        again["messages"] -= a * len(kept) * (n - 1)
    return norm | {"all-gather forward": times(a), "all-gather backward": again, "reduce-scatter gradients": times(a)}


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
    assert " ".join(report) == (
        "format chapter ranks parameters precision steps loss validation_loss unigram_entropy"
        " step_ms claims sent sent_to received memory counted"
    )
    assert (report["chapter"], report["ranks"], report["steps"]) == (name, n, len(report["loss"]))
    assert type(report["parameters"]) is int
    assert report["precision"] in ("mixed", "bf16", "fp32", "fp64")
    assert all(type(loss) is float for loss in [*report["loss"], report["validation_loss"], report["unigram_entropy"]])
    assert report["step_ms"].keys() == {"median", "min"}
    assert report["step_ms"]["median"] >= report["step_ms"]["min"] > 0
    for claim in report["claims"]:
        assert list(claim) == ["source", "claim", "formula", "expected", "counted", "unit", "scope", "within", "holds"]
        assert all(type(claim[key]) is str for key in ("source", "claim", "formula", "unit"))
        assert type(claim["within"]) is float
        apart = abs(claim["expected"] - claim["counted"])
        assert claim["holds"] is (apart <= claim["within"] * max(1, abs(claim["expected"]), abs(claim["counted"])))
        assert claim["within"] == 0 or claim["claim"] == "proof: first loss"  # a count is exact
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
    ("strategy", "n", "settings"), [pytest.param(*case, marks=[pytest.mark.slow] * slow(*case[:2])) for case in CASES]
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
    assert len(report["claims"]) == 14 * 6 + 3  # of three, also what leaves a host
    assert all(claim["holds"] for claim in report["claims"])
    counted = {(claim["source"], claim["claim"]): claim["counted"] for claim in report["claims"]}
    # What the server must carry, and what no algorithm can beat (all ranks together, 4 bytes an element).
    assert counted["all-reduce server", "sent by the busiest rank"] == (n - 1) * size * 4
    assert counted["all-reduce ring", "total sent"] == 2 * (n - 1) * size * 4
    assert counted["all-reduce ring", "calls of the busiest rank"] == 2 * (n - 1)
    assert done.stdout.count("✓") == 14 + 1  # and one in the legend


# ---- claims that do not hold -----------------------------------------------------------------------------------------

STRAY = """
import numpy as np
from dataclasses import replace
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
"""


def test_a_claim_that_does_not_hold_is_named_and_makes_the_exit_status_1(text: str, tmp_path: Path) -> None:
    """One byte too many from one rank. (Which claims fall with which mistake: claims/mutants.)"""
    failing = {("ZeRO §7", name) for name in ("all-gather parameters", "total sent", "total received")}
    (tmp_path / "wrong.py").write_text(STRAY)
    options = [*COMMON, *GPT.split(), "--layers", "2", "--data", text, "--json", "report.json"]
    done = run_python("wrong.py", *options, ranks=2, cwd=tmp_path)
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
    done = run_python("-c", program)
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
