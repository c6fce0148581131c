"""ZeRO's formulas: against the figures that the paper prints, and numbers worked out by hand."""

import pytest

from minidist.papers import zero
from tables import table


def test_figures_that_are_not_exact_are_near() -> None:
    """Whatever the rules of rounding: 0.117 as 0.12 is the furthest off."""
    figures = [*zero.FIGURE_1, *(cell for rows in zero.TABLE_1.values() for row in rows.values() for cell in row)]
    assert len(figures) == 54 + 4
    for figure in figures:
        assert float(figure.printed) == pytest.approx(figure.value, rel=0.03), figure.cell


@pytest.mark.parametrize(("gigabytes", "rounded", "cut"), table(__file__, "rounding"))
def test_rounding(gigabytes: float, rounded: str, cut: str) -> None:
    assert (zero.three_digits(gigabytes), zero.cut_off(gigabytes)) == (rounded, cut)


def test_memory_is_split_as_the_paper_says():
    """A hundred parameters on four ranks: 2, 2 and 12 bytes each."""
    assert [zero.model_states(100, 4, stage) for stage in range(4)] == [
        zero.ModelStates(200, 200, 1200),
        zero.ModelStates(200, 200, 300),
        zero.ModelStates(200, 50, 300),
        zero.ModelStates(50, 50, 300),
    ]
    in_fp32 = zero.model_states(100, 4, 1, p=4, g=4, k=8)
    assert in_fp32 == zero.ModelStates(400, 400, 200)
    assert in_fp32.total == 1000


def test_limits():
    """Section 5: 4 times, 8 times and N times less."""
    full = zero.model_states(1, 1, 0).total
    ratios = [full / zero.model_states(1, 10**9, stage).total for stage in (1, 2, 3)]
    assert ratios == pytest.approx([4, 8, 10**9])


@pytest.mark.parametrize(("stage", "accumulate", "kept", "sent"), table(__file__, "volume"))
def test_volume(stage, accumulate, kept, sent):
    volume = zero.volume(1200, 4, stage, accumulate, kept)
    assert sorted(volume.values()) == sorted(sent)
    if len(set(sent)) > 1:
        assert volume.get("all-gather parameters", volume.get("all-gather backward")) == min(sent)
    assert sum(zero.volume(1200, 1, stage, accumulate, kept).values()) == 0
