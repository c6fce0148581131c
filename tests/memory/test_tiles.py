"""A layer in tiles: the plain layer's results, t times less of it at a time, √t times as wide."""

import numpy as np
import pytest

from minidist.memory import tiles
from minidist.memory.pool import OutOfMemory


@pytest.mark.parametrize("t", [1, 2, 3, 6, 12])
def test_results_are_those_of_the_whole_layer(t: int) -> None:
    draw = np.random.default_rng(0)
    x, weights, dy = draw.standard_normal((5, 7)), draw.standard_normal((12, 7)), draw.standard_normal((5, 12))
    rows = 12 // t
    given: dict[int, np.ndarray] = {}

    def fetch(i: int) -> np.ndarray:
        return weights[i * rows : (i + 1) * rows]

    np.testing.assert_allclose(tiles.forward(x, fetch, t), x @ weights.T, rtol=1e-13)
    np.testing.assert_allclose(tiles.backward(dy, x, fetch, given.__setitem__, t), dy @ weights, rtol=1e-12)
    assert list(given) == list(range(t))
    np.testing.assert_allclose(np.concatenate(list(given.values())), dy.T @ x, rtol=1e-12)


@pytest.mark.parametrize("t", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("h", [16, 48])
def test_what_is_needed_is_a_tth(h: int, t: int) -> None:
    """8h² bytes of weights and as many of gradients, in float16."""
    assert tiles.bytes_needed(h, t, np.float16) * t == 16 * h * h
    assert tiles.bytes_needed(h, t, np.float16, capacity=16 * h * h // t) * t == 16 * h * h
    with pytest.raises(OutOfMemory):
        tiles.bytes_needed(h, t, np.float16, capacity=16 * h * h // t - 1)


@pytest.mark.parametrize("t", [1, 4, 16])
def test_the_widest_grows_with_the_root(t: int) -> None:
    root = {1: 1, 4: 2, 16: 4}[t]
    assert tiles.find_widest(16 * 48**2, t, np.float16) == 48 * root
    assert tiles.find_widest(16 * 48**2 - 1, t, np.float16) == 48 * root - 16
