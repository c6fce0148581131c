"""Memory-centric tiling: a linear layer that is computed tile by tile (ZeRO-Infinity, section 5.1.3).

A unit must be whole while it computes, however many ranks share it. For a layer of h inputs and 4h outputs that is 8h²
bytes of weights and 8h² of their gradients, at two bytes each. If the layer is cut by outputs into t tiles, and each is
fetched when needed and dropped afterwards, it needs t times less. Results are the same, except for the order of sums.
So in the same memory, a layer may be √t times as wide. (Its inputs and outputs are not divided.)
"""

from collections.abc import Callable

import numpy as np

from minidist.memory.pool import Array, OutOfMemory, Pool

Fetch = Callable[[int], Array]  # the weights of tile i: (out/t, in)


def forward(x: Array, fetch: Fetch, tiles: int) -> Array:
    """y = x Wᵀ for x (n, in) and W (out, in), whose rows are fetched tile by tile: (n, out)."""
    return np.concatenate([x @ fetch(i).T for i in range(tiles)], axis=-1)


def backward(dy: Array, x: Array, fetch: Fetch, give: Callable[[int, Array], object], tiles: int) -> Array:
    """dx (n, in), from dy (n, out). The gradient of each tile's weights (out/t, in) is handed on, and the weights are
    dropped, before the next tile comes."""
    dx = np.zeros_like(x)
    for i, part in enumerate(np.split(dy, tiles, axis=-1)):  # (n, out/t)
        weights = fetch(i)
        dx += part @ weights
        give(i, part.T @ x)
        del weights  # before the next tile comes
    return dx


def bytes_needed(width: int, tiles: int, dtype: np.typing.DTypeLike, capacity: int | None = None) -> int:
    """The most bytes that weights and gradients of a layer of h inputs and 4h outputs take in a forward and a
    backward. Raises OutOfMemory if they are more than the capacity."""
    pool = Pool("device", capacity)
    x, dy = np.ones((1, width), dtype), np.ones((1, 4 * width), dtype)

    def fetch(tile: int) -> Array:
        return pool.zeros("gathered", (4 * width // tiles, width), dtype)

    forward(x, fetch, tiles)
    backward(dy, x, fetch, lambda tile, gradient: pool.hold("bucket", gradient), tiles)
    return pool.peak["all"]


def find_widest(capacity: int, tiles: int, dtype: np.typing.DTypeLike, step: int = 16) -> int:
    """The widest such layer that fits into a capacity, by trying one width after the other."""
    width = 0
    while True:
        try:
            bytes_needed(width + step, tiles, dtype, capacity)
        except OutOfMemory:
            return width
        width += step
