"""Gradients in float32 and attention in tiles, as systems have them: in every chapter, on ranks of one process."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import every_case, printed_by, ranks_of
from jobs import engines
from minidist.engine import Engine
from minidist.exchange.one_process import run_ranks
from minidist.nn.flat import Flat
from minidist.nn.precision import PRECISIONS
from minidist.zero3 import LADDER
from sampling import shard_of_this_run

SIZES = "--steps 2 --layers 6 --width 24 --heads 12 --context 12 --batch 16"
BOTH = "--grad-dtype fp32 --attention tiled"
EVERYWHERE = [  # but on a parameter server, which adds pushes to weights
    (n, line) for n, line in every_case(f"{SIZES} --precision bf16 --dropout 0.1 {BOTH}") if n == max(ranks_of(line))
]
NOW = shard_of_this_run(EVERYWHERE, 20)


def report_of(line: str, n: int, folder: Path) -> Any:
    printed_by(f"{line} --json {folder / 'report'}", n)
    return json.loads((folder / "report").read_text())


@pytest.mark.parametrize(
    ("n", "line"), [pytest.param(*of, marks=[pytest.mark.slow] * (of not in NOW)) for of in EVERYWHERE]
)
def test_every_claim_holds(n: int, line: str, tmp_path: Path) -> None:
    """Of every case: what is held and sent is what the formulas say, and its numbers are one process's, which attends
    whole."""
    pytest.importorskip("ml_dtypes")
    report = report_of(line, n, tmp_path)
    assert len(report["claims"]) > 3
    assert all(claim["holds"] for claim in report["claims"])


def test_every_chapter_that_trains_is_among_them() -> None:
    pytest.importorskip("ml_dtypes")
    chapters = {line.split()[0] for _, line in every_case()} - {"parameter_server"}
    assert {line.split()[0] for _, line in EVERYWHERE} == chapters


@pytest.mark.parametrize(("chapter", "stage"), [("data_parallel", 0), ("zero1", 1), ("zero2", 2), ("zero3", 3)])
def test_bytes_by_hand(chapter: str, stage: int, tmp_path: Path) -> None:
    """2Ψ + 4Ψ + 12Ψ, of which each stage divides one more; and 4 bytes for each gradient on the wire, but 2 for a
    parameter. Four ranks divide every unit, so nothing is padding."""
    n, a = 4, 2
    line = f"{chapter} --steps 1 --layers 1 --width 64 --heads 2 --context 4 --batch 8 --validate 0 --accumulate {a}"
    report = report_of(f"{line} --grad-dtype fp32", n, tmp_path)
    psi, sent = report["parameters"], report["sent"][0]
    held = [report["memory"][0][kind] for kind in ("parameters", "gradients", "optimizer")]
    assert held == [k * psi // (n if stage >= divides else 1) for k, divides in ((2, 3), (4, 2), (12, 1))]
    share = psi * (n - 1) // n
    of = {
        0: {"all-reduce gradients": 4 * 2 * share},
        1: {"reduce-scatter gradients": 4 * share, "all-gather parameters": 2 * share},
        2: {"reduce-scatter gradients": a * 4 * share, "all-gather parameters": 2 * share},
        3: dict.fromkeys(("all-gather forward", "all-gather backward"), a * 2 * share)
        | {"reduce-scatter gradients": a * 4 * share},
    }
    assert {phase: sent[phase]["bytes"] for phase in of[stage]} == of[stage]


# ---- what float32 gradients are for ----------------------------------------------------------------------------------


class Watched(Engine):
    """Serial training that notes every gradient as a backward writes it."""

    def collect(self, flat: Flat) -> None:
        assert flat.raw_grad is not None
        self.written: dict[str, list[np.ndarray]] = getattr(self, "written", {})
        self.written.setdefault(flat.name, []).append(flat.raw_grad.copy())
        super().collect(flat)


def mixed(accumulate: int, wide: bool) -> Any:
    settings = engines.settings("mixed", "sgd", accumulate, 0.0)
    precision = replace(PRECISIONS["mixed"], loss_scale=1.0, gradient=np.float32 if wide else None)
    return replace(settings, precision=precision)


@pytest.mark.parametrize("wide", [True, False])
def test_micro_batches_add_up_without_rounding(wide: bool) -> None:
    """To the bit as float32 adds them; as they are stored, each is rounded to 11 bits."""
    engine = Watched(engines.model("gpt untied"), mixed(4, wide))
    for i in range(4):
        engine.backward(engine.forward(*engines.batch(i, 2)))
        engine.micro_batch += 1
    exact = []
    for flat in engine.flats:
        total = np.zeros_like(flat.grad, np.float32)
        for written in engine.written[flat.name]:
            total += written
        assert len(engine.written[flat.name]) == 4
        exact.append(bool((flat.grad == total).all()))
    assert all(exact) == wide
    assert engine.flats[0].grad.dtype == (np.float32 if wide else np.float16)


@pytest.mark.parametrize("stage", range(4))
def test_ranks_add_up_what_one_process_does(stage: int) -> None:
    """The norm is that of serial training to float32's precision, where float16's sums are off in the fourth digit."""

    def norm(wide: bool, comm: Any = None) -> float:
        units, settings = engines.model("gpt"), mixed(3, wide)
        engine = LADDER[stage](units, settings, comm) if comm else Engine(units, settings)
        engine.train_batch(*engines.batch(0, 12))
        return engine.norm

    truth = norm(wide=True)
    off = [max(abs(run_ranks(partial(norm, wide), 4)[0] / truth - 1), 1e-12) for wide in (False, True)]
    assert off[1] < 1e-6
    assert off[0] > 10 * off[1]


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chapter", ["zero1", "zero3", "offload"])
def test_a_run_goes_on_from_a_checkpoint_to_the_bit(chapter: str, tmp_path: Path) -> None:
    """Nothing of a gradient is saved: with the same options, what comes after is the same."""
    line = f"{chapter} {SIZES} --dropout 0.1 --accumulate 2 --lr 0.01 --min-lr 0.01 --warmup 0 {BOTH}"
    whole = report_of(line.replace("--steps 2", "--steps 4"), 2, tmp_path)
    printed_by(f"{line} --save {tmp_path / 'saved'}", 2)
    rest = report_of(f"{line.replace('--steps 2', '--steps 4')} --load {tmp_path / 'saved'}", 2, tmp_path)
    assert rest["loss"] == whole["loss"][2:]
    assert rest["validation_loss"] == whole["validation_loss"]
