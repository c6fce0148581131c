"""The notebook's gaps, as they are, under the names that the exercise asks for."""
# loses: run_segment_memory, mask_differs, mask_again, mask_share, mask_alone, cut
# says: what 6 layers keep is held
# says: is not chunk|has the shape

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist import ring
from minidist.mpi.comm import Comm

Array = np.ndarray


def run_forward(layers: Sequence[Any], x: Array, k: int) -> tuple[Array, list[Array]]:
    inputs = []
    for first in range(0, len(layers), k):
        inputs.append(x)
        for layer in layers[first : first + k]:
            x, _ = layer.forward(x)
            del _
    return x, inputs


def run_segment(layers, x, dy):
    kept = []
    for layer in layers:
        x, of_layer = layer.forward(x)
        kept.append(of_layer)
    for layer, of_layer in zip(reversed(layers), reversed(kept), strict=True):
        dy = layer.backward(dy, of_layer)
    return dy


def run_backward(layers: Sequence[Any], inputs: list[Array], k: int, dy: Array) -> Array:
    while inputs:
        first = (len(inputs) - 1) * k
        dy = run_segment(layers[first : first + k], inputs.pop(), dy)
    return dy


def mask(step, layer, shape, p):
    return np.random.default_rng([step, layer]).random(shape) >= p


def best_interval(n: int, given: float, layer: float) -> int:
    best, least = 1, n * given + layer
    for k in range(2, n + 1):
        segments = (n + k - 1) // k
        held = segments * given + k * layer
        if held < least:
            best, least = k, held
    return best


def chunk(size: int, n: int, i: int) -> slice:
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))


def cut(comm, x):
    x = x.reshape(-1)
    size = len(x) // comm.size
    return x[comm.rank * size : (comm.rank + 1) * size].copy()


def whole(comm: Comm, part: Array, shape: tuple[int, ...]) -> Array:
    size = int(np.prod(shape))
    flat = ring.all_gather(comm, part, size)
    return flat.reshape(shape)
