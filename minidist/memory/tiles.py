"""Memory-centric tiling: a linear layer of which one tile after the other is here (ZeRO-Infinity, section 5.1.3).

A unit must be whole to be computed with, however many ranks divide it. For a layer of h inputs and 4h outputs that is
8h² bytes of weights and 8h² of their gradients, at two bytes each. Cut by outputs into t tiles, of which each comes
when it is needed and goes afterwards, it is t times less, and results are the same but for the order of sums. So a
layer whose memory is bounded may be √t times as wide. (What goes in and comes out is not divided.)
"""

from collections.abc import Callable

import numpy as np

from minidist.memory.pool import Array, OutOfMemory, Pool

Fetch = Callable[[int], Array]  # the weights of tile i: (out/t, in)


def forward(x: Array, fetch: Fetch, tiles: int) -> Array:
    """y = x Wᵀ for x (n, in) and W (out, in), rows of which are fetched: (n, out)."""
    return np.concatenate([x @ fetch(i).T for i in range(tiles)], axis=-1)


def backward(dy: Array, x: Array, fetch: Fetch, give: Callable[[int, Array], object], tiles: int) -> Array:
    """dx (n, in), from dy (n, out). The gradient of each tile's weights (out/t, in) is given away, and these
    are let go, before the next tile's come."""
    dx = np.zeros_like(x)
    for i, part in enumerate(np.split(dy, tiles, axis=-1)):  # (n, out/t)
        weights = fetch(i)
        dx += part @ weights
        give(i, part.T @ x)
        del weights  # before the next tile's come
    return dx


def bytes_needed(width: int, tiles: int, dtype: np.typing.DTypeLike, capacity: int | None = None) -> int:
    """Bytes, at the most, of the weights and gradients of a layer of h inputs and 4h outputs in a forward and a
    backward. Raises OutOfMemory if they are more than a capacity."""
    pool = Pool("device", capacity)
    x, dy = np.ones((1, width), dtype), np.ones((1, 4 * width), dtype)

    def fetch(tile: int) -> Array:
        return pool.zeros("gathered", (4 * width // tiles, width), dtype)

    forward(x, fetch, tiles)
    backward(dy, x, fetch, lambda tile, gradient: pool.hold("bucket", gradient), tiles)
    return pool.peak["all"]


def find_widest(capacity: int, tiles: int, dtype: np.typing.DTypeLike, step: int = 16) -> int:
    """The widest such layer that a capacity has room for, by trying one after the other."""
    width = 0
    while True:
        try:
            bytes_needed(width + step, tiles, dtype, capacity)
        except OutOfMemory:
            return width
        width += step
