"""Every chapter in the precisions that all of them have: the same losses, and claims that hold."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alone import known_alone, train_alone
from cases import RANKS, every_case, job_of
from minidist.nn.precision import PRECISIONS
from minidist.programs.chapter import find
from minidist.programs.serial import PLAIN
from ranks import launch
from sampling import shard_of_this_run
from tables import table

# Sizes that 1, 2, 3 and 4 ranks can cut, and for which there are units enough for 4 stages of 2 chunks.
SIZES = "--steps 3 --layers 6 --width 24 --heads 12 --context 12 --validate 8"
PARTS = 9
[FIRST] = shard_of_this_run(range(PARTS), PARTS)


@cache
def lines(n: int, precision: str) -> list[str]:
    """Every case that works at these sizes, and more."""
    sizes = f"--batch {12 if n == 3 else 16} {SIZES}"
    found = [line for ranks, line in every_case(sizes) if ranks == n]
    more = table(__file__, "more") + (table(__file__, "bfloat16") if precision == "bf16" else [])
    found += [line for of in more if n in (2, 3, 4) and job_of(line := f"{of} {sizes}", n)]
    return [line for line in found if precision == "bf16" or synchronous(line, n)]


def synchronous(line: str, n: int) -> bool:
    """Whether its losses are those of serial training: no weights are older than the newest, no token is dropped, and
    none is kept from an expert's host."""
    chapter = find(line.split()[0])
    if hasattr(chapter, "serial"):
        serial = chapter.serial(job_of(line, n))
        plain = serial.plain and serial.make is PLAIN.make  # else it has another update
    else:
        plain = not re.search("ssp|async", line)
    return plain and "--capacity" not in line and "--host-limit" not in line


def slow(n: int, line: str, precision: str) -> bool:
    """In every run every ninth line in bfloat16 on four ranks, and the ones after these in float64 on three, from one
    that the commit draws; the others with -m slow, and all on other numbers of ranks."""
    at = (lines(n, precision).index(line) - FIRST) % PARTS
    return (n, at) != {"fp64": (3, 1), "bf16": (4, 0)}[precision]


@cache
def on_ranks(n: int, precision: str, later: bool, folder: Path) -> dict[str, Any]:
    """All lines of every run in one job, or the slow ones; their reports."""
    here = [line for line in lines(n, precision) if slow(n, line, precision) == later]
    typed = [f"{line} --precision {precision}" for line in here]
    reports = launch("jobs.chapters:command_lines", n, typed, str(folder), timeout=300).values[0]
    return dict(zip(here, reports.values(), strict=True))


@cache
def serial(line: str, precision: str, folder: Path) -> Any:
    """What `python -m minidist.train` reports, with those of the options that it has."""
    mixture = ["--experts", "8"] * (line.startswith("expert_parallel") and "--experts" not in line)
    report = folder / "alone.json"
    assert train_alone(*known_alone(line), *mixture, "--precision", precision, "--json", str(report)) == 0
    return json.loads(report.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


def everywhere(ranks: tuple[int, ...], precision: str) -> list[Any]:
    """Each line on each number of ranks."""
    return [
        pytest.param(n, line, marks=[pytest.mark.slow] * slow(n, line, precision), id=f"{n}-{line}")
        for n in ranks
        for line in lines(n, precision)
    ]


@pytest.mark.parametrize(("n", "line"), everywhere(RANKS, "fp64"))
def test_a_synchronous_chapter_gives_the_serial_losses(n: int, line: str, folder: Path) -> None:
    report, truth = on_ranks(n, "fp64", slow(n, line, "fp64"), folder)[line], serial(line, "fp64", folder)
    for loss in ("loss", "validation_loss"):
        np.testing.assert_allclose(report[loss], truth[loss], rtol=1e-12, atol=0)
    assert len(report["loss"]) == 3
    assert report["status"] == 0


@pytest.mark.parametrize(("n", "line"), everywhere((2, 4), "bf16"))
def test_in_bfloat16_every_claim_holds_and_losses_are_those_of_float32(n: int, line: str, folder: Path) -> None:
    """In three steps to 5e-5: bfloat16 rounds weights to 8 bits, whose errors cancel in a loss over many tokens."""
    pytest.importorskip("ml_dtypes")
    report = on_ranks(n, "bf16", slow(n, line, "bf16"), folder)[line]
    if synchronous(line, n):
        truth = serial(line, "fp32", folder)
    else:  # which nothing else is compared to
        [truth] = launch("jobs.chapters:command_lines", n, [f"{line} --precision fp32"], str(folder)).values[0].values()
    assert (report["status"], report["precision"]) == (0, "bf16")
    assert report["claims"]
    assert all(claim["holds"] for claim in report["claims"])
    for loss in ("loss", "validation_loss"):
        np.testing.assert_allclose(report[loss], truth[loss], rtol=5e-5, atol=0)


def test_a_scale_that_is_still_coming_down_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first overflow is forgiven, and each of the other two halves it: a smaller learning rate would not help."""
    monkeypatch.setitem(PRECISIONS, "mixed", replace(PRECISIONS["mixed"], loss_scale=2.0**40))
    line = "--steps 3 --layers 1 --width 8 --heads 2 --context 8 --batch 4"
    assert train_alone(*line.split()) == 1
    said = capsys.readouterr().err
    assert f"the loss scale is still coming down, and is {2.0**38:g} now: use more --steps" in said
    assert "--lr" not in said
