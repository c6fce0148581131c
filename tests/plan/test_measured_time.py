"""The steps that others timed, next to the model of time; and what the model counts for their layers."""

from dataclasses import replace
from pathlib import Path

import pytest

from minidist.formulas.profile import MEGATRON, PAPER
from minidist.papers.decoder import MIXTURE
from minidist.plan import measured_time
from minidist.plan.choice import Choice, Wanted, ask
from minidist.plan.measured import cells, model
from minidist.plan.time import flops_a_token, operations

README = Path(measured_time.__file__).with_name("README.md")
ROWS = measured_time.compare(replace(measured_time.B200, ceiling=measured_time.ceiling()))


def test_one_number_is_set_on_one_row() -> None:
    assert len(ROWS) == 43
    assert ROWS[0].off == pytest.approx(0, abs=1e-6)
    assert sum(abs(row.off) < 0.001 for row in ROWS) == 1


def test_order_and_error() -> None:
    """Dense runs within 30 %, half of them within 8 %; mixtures within 35 %; most pairs in the measured order."""
    dense, mixtures = (
        sorted(abs(row.off) for row in ROWS if row.name.startswith("llama") == of) for of in (True, False)
    )
    assert (len(dense), len(mixtures)) == (31, 12)
    assert dense[-1] < 0.3
    assert dense[len(dense) // 2] < 0.08
    assert mixtures[-1] < 0.35
    assert measured_time.in_order(ROWS) == (38, 45)


def test_the_readme_has_the_table() -> None:
    text = README.read_text("utf-8")
    for row in ROWS:
        assert f"| {row.name} | {row.measured:.3f} | {row.modeled:.3f} | {100 * row.off:+.1f} % |" in text


def test_operations_of_latent_attention_and_of_a_mixture_by_hand() -> None:
    """DeepSeek-V2: two operations for each element of a matrix; experts at capacity 1; queries are wide."""
    s, h, a = 4096, 5120, 128
    wanted = Wanted("v2", model("deepseek-v2-4", s), 8, s, profile=MEGATRON)
    done = operations(ask(wanted, Choice(8, ep=8)), 0, False, 1)
    attention = h * 1536 + 1536 * a * 192 + h * 576 + 512 * a * 256 + a * 128 * h
    norms = 1536 + 512 + 2 * h
    dense, mixture = 3 * h * 12_288, 160 * h + 3 * h * 3072
    rows = -(-s * 6 // 160) * 160
    core = 2 * s * s * a * (192 + 128) * 0.5 * (1 + 1 / s)
    assert done.core == pytest.approx(4 * core)
    elements = 4 * (attention + norms) + dense + 3 * mixture
    assert done.layers == pytest.approx(2 * s * elements + 3 * 2 * rows * 3 * h * 1536 + 4 * core)
    assert wanted.model.decoder.kinds.count(MIXTURE) == 3
    active = elements + 3 * 6 * 3 * h * 1536 + 102_400 * h + h
    assert flops_a_token(wanted.model, s) == pytest.approx(6 * active + 6 * 4 * s * a * (192 + 128))


def test_tiles_that_the_mask_hides_are_not_computed() -> None:
    """Of s² scores, s(s+1)/2 are below the mask; whole attention computes all. MFU counts all, as PaLM does."""
    cell = next(cells())
    tiled, whole = (
        operations(ask(replace(cell.wanted, profile=profile), cell.choice), 0, False, 1)
        for profile in (MEGATRON, PAPER)
    )
    s = cell.wanted.context
    assert tiled.core / whole.core == pytest.approx((s + 1) / (2 * s))
    assert whole.layers - tiled.layers == pytest.approx(whole.core - tiled.core)
