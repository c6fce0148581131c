"""Every chapter at its defaults, in the precisions that all of them have: the same losses, and claims that hold."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alone import train_alone
from minidist.nn.precision import PRECISIONS
from minidist.pp.schedules import SCHEDULES
from ranks import launch
from sampling import shard_of_this_run

# Sizes that 1, 2, 3, 4 and 8 ranks can cut, and for which there are units enough for 4 stages of 2 chunks. All else is
# at its default: the text, the batch, AdamW, clipping, the learning rate, micro-batches, the grid.
SIZES = "--steps 3 --layers 6 --width 24 --heads 12 --context 12"
FLUSHING = [name for name, schedule in SCHEDULES.items() if schedule.flushes]
SYNCHRONOUS = [
    "data_parallel",
    "data_parallel --reduce server",
    "zero1",
    "zero2",
    "zero3",
    "zero3 --keep-last",
    "fsdp",
    "fsdp --strategy shard_grad_op --forward-prefetch",
    "fsdp --strategy hybrid_shard --backward-prefetch post",
    "fsdp --strategy no_shard",
    "tensor_parallel",
    "tensor_parallel --sequence-parallel",
    "context_parallel",
    "context_parallel --scheme all-gather --positions striped --zero 2",
    "context_parallel --scheme ulysses --zero 3",
    "zero_r",
    "zero_r --zero 3 --activations host",
    *(f"pipeline --schedule {name}" for name in FLUSHING),
    *(f"parallel3d --zero {stage}" for stage in range(4)),
    "parameter_server --colocated",
    "offload",
    "infinity",
    "expert_parallel",
    "expert_parallel --zero 3 --top 1",
]
WITH_A_SERVER = ["parameter_server", "parameter_server --servers 2"]  # from 2 and 3 ranks on
ASYNCHRONOUS = [
    "local_sgd --every 2",
    *(f"pipeline --schedule {name}" for name in SCHEDULES if name not in FLUSHING),
    "parameter_server --consistency ssp",
    "parameter_server --consistency async",
]
[FIRST] = shard_of_this_run(range(6), 6)
IN_BF16 = ["tensor_parallel --gather-logits --recompute full", "zero3 --model llama"]


def lines(n: int) -> list[str]:
    if n == 8:
        return [f"parallel3d --zero {stage}" for stage in range(4)]
    unfit = ["pipeline --schedule interleaved"] * (n == 3)  # the default batch of 16 has no 3, 6, … micro-batches
    unfit += ["pipeline --schedule chimera", "pipeline --schedule dualpipe"] * (
        n % 2
    )  # crossed: an even number of stages
    return [*(line for line in SYNCHRONOUS if line not in unfit), *WITH_A_SERVER[: n - 1]]


def slow(n: int, line: str, precision: str) -> bool:
    """In every run every sixth line in bfloat16 on four ranks, and the ones after these in float64 on three, from one
    that the commit draws; the others with -m slow, and all on other numbers of ranks."""
    every = [*SYNCHRONOUS, *WITH_A_SERVER, *ASYNCHRONOUS, *IN_BF16]
    return (n, (every.index(line) - FIRST) % 6) != {"fp64": (3, 1), "bf16": (4, 0)}[precision]


@cache
def on_ranks(n: int, later: bool, folder: Path) -> dict[str, Any]:
    """In float64: all lines of every run in one job, or the slow ones; their reports."""
    here = [f"{line} {SIZES} --precision fp64" for line in lines(n) if slow(n, line, "fp64") == later]
    reports = launch("jobs.chapters:command_lines", n, here, str(folder), timeout=300).values[0]
    return {line.split(" --steps")[0]: report for line, report in reports.items()}


def serial(precision: str, folder: Path, line: str) -> Any:
    """What `python -m minidist.train` reports, of the model that a chapter's line trains."""
    mixture = line.startswith("expert_parallel")
    return train_serially(precision, folder, "--experts 8 --top 1" if "--top 1" in line else "--experts 8" * mixture)


@cache
def train_serially(precision: str, folder: Path, model: str) -> Any:
    report = folder / f"{precision}{model.replace(' ', '')}.json"
    assert train_alone(*SIZES.split(), *model.split(), "--precision", precision, "--json", str(report)) == 0
    return json.loads(report.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


def everywhere(ranks: tuple[int, ...], precision: str, lines_of: Callable[[int], list[str]]) -> list[Any]:
    """Each line on each number of ranks."""
    return [
        pytest.param(n, line, marks=[pytest.mark.slow] * slow(n, line, precision), id=f"{n}-{line}")
        for n in ranks
        for line in lines_of(n)
    ]


@pytest.mark.parametrize(("n", "line"), everywhere((1, 2, 3, 4, 8), "fp64", lines))
def test_at_its_defaults_a_synchronous_chapter_gives_the_serial_losses(n: int, line: str, folder: Path) -> None:
    report, truth = on_ranks(n, slow(n, line, "fp64"), folder)[line], serial("fp64", folder, line)
    for loss in ("loss", "validation_loss"):
        np.testing.assert_allclose(report[loss], truth[loss], rtol=1e-12, atol=0)
    assert len(report["loss"]) == 3
    assert report["status"] == 0


# ---- bfloat16 --------------------------------------------------------------------------------------------------------


def bf16_lines(n: int) -> list[str]:
    return [*lines(n), *ASYNCHRONOUS, *IN_BF16]


@cache
def in_bf16(n: int, later: bool, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Chapters and schedules in bfloat16, and in float32 what nothing else is compared to, in one job."""
    here = [line for line in bf16_lines(n) if slow(n, line, "bf16") == later]
    alone = [line for line in here if line not in lines(n)]
    of_bf16 = [f"{line} {SIZES} --precision bf16" for line in here]
    of_fp32 = [f"{line} {SIZES} --precision fp32" for line in alone]
    pytest.importorskip("ml_dtypes")
    found = launch("jobs.chapters:command_lines", n, [*of_bf16, *of_fp32], str(folder), timeout=300).values[0]
    truth = {line: found[key] for line, key in zip(alone, of_fp32, strict=True)}
    return {line: found[key] for line, key in zip(here, of_bf16, strict=True)}, truth


@pytest.mark.parametrize(("n", "line"), everywhere((2, 4), "bf16", bf16_lines))
def test_in_bfloat16_every_claim_holds_and_losses_are_those_of_float32(n: int, line: str, folder: Path) -> None:
    """In three steps to 5e-5: bfloat16 rounds weights to 8 bits, whose errors cancel in a loss over many tokens."""
    reports, truths = in_bf16(n, slow(n, line, "bf16"), folder)
    report, truth = reports[line], truths.get(line) or serial("fp32", folder, line)
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
