"""Asks the package for a mask."""
# loses: mask_again, mask_differs, mask_share, mask_alone
# says: minidist.nn.layers is not here: it has what this lesson asks you to write

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


def run_segment(layers: Sequence[Any], x: Array, dy: Array) -> Array:
    waiting = []
    for layer in layers:
        x, kept = layer.forward(x)
        waiting.append((layer, kept))
    del kept
    while waiting:
        layer, kept = waiting.pop()
        dy = layer.backward(dy, kept)
        del kept
    return dy


def run_backward(layers: Sequence[Any], inputs: list[Array], k: int, dy: Array) -> Array:
    while inputs:
        first = (len(inputs) - 1) * k
        dy = run_segment(layers[first : first + k], inputs.pop(), dy)
    return dy


def mask(key, name, shape, p):
    from minidist.nn.layers import Batch

    return Batch(tokens=np.zeros((1, 1), int), key=tuple(key)).mask(name, p, tuple(shape))[0]


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


def cut(comm: Comm, x: Array) -> Array:
    flat = x.reshape(-1)
    mine = chunk(flat.size, comm.size, comm.rank)
    return flat[mine].copy()


def whole(comm: Comm, part: Array, shape: tuple[int, ...]) -> Array:
    size = int(np.prod(shape))
    flat = ring.all_gather(comm, part, size)
    return flat.reshape(shape)
