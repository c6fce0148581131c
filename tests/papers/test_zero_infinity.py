"""ZeRO-Infinity's equations, by hand."""

import pytest

from minidist.papers import zero_infinity as paper


def test_memory() -> None:
    assert paper.parameters(80, 10240) == 12 * 80 * 10240**2 == 100_663_296_000
    assert paper.model_states(80, 10240) == 240 * 80 * 10240**2
    assert paper.checkpoints(80, 10240, 32, 1024) == 2 * 32 * 1024 * 10240 * 80
    assert paper.working_memory(8192) == 2**30  # 1 GiB
    assert paper.working_memory(65536, 16) == 4 * 2**30


@pytest.mark.parametrize("tiles", [1, 4, 16, 25])
def test_tiles_make_layers_wider_by_the_root(tiles: int) -> None:
    assert paper.largest_width(2**30, tiles) == pytest.approx(8192 * tiles**0.5)
    assert paper.working_memory(int(paper.largest_width(2**30, 4)), 4) == 2**30


def test_intensity() -> None:
    assert paper.ait_of_passes(3, 1024) == 3 * 1024
    assert paper.ait_of_update(3, 1024) == 3 * 1024 / 4
    assert paper.ait_of_checkpoints(2048, 3) == pytest.approx(24 * 2048 * 3)


def test_efficiency() -> None:
    """As found before: 50.6, 91.6, 58.4 and 89.4 %."""
    assert [round(figure.value or 0, 1) for figure in paper.NEEDS] == [50.6, 91.6, 58.4, 89.4]
    for share in (0.1, 0.5, 0.9):
        assert paper.efficiency(1024, paper.bandwidth_for(share, 1024, 70e12), 70e12) == pytest.approx(share)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_is_moved(stage: int) -> None:
    moved = paper.elements_moved(120, 4, stage, accumulate=5, again=8)
    assert moved["states"] == 30
    assert moved["gradients"] == (30 if stage == 1 else 150)
    assert moved["parameters read"] == (5 * (2 * 30 + 2) if stage == 3 else 0)
    assert moved["parameters written"] == (30 if stage == 3 else 0)
