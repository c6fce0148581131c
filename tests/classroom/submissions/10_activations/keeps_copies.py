"""Holds copies of everything, for good."""
# loses: run_forward_memory, run_segment_memory
# says: when layer \d has run, [\d,]+ bytes are held.* no more than \d+ such arrays. Copies count
# says: when layer \d's backward begins, [\d,]+ bytes are held. With what \d layers keep

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist import ring
from minidist.mpi.comm import Comm

Array = np.ndarray


def run_forward(layers, x, k):
    inputs, everything = [], []
    for i, layer in enumerate(layers):
        if i % k == 0:
            inputs.append(x)
        everything.append(x.copy())
        x, kept = layer.forward(x)
        everything.append([array.copy() for array in kept])
        del kept
    return x, inputs


def run_segment(layers, x, dy):
    everything = []
    for layer in layers:
        x, kept = layer.forward(x)
        everything.append([array.copy() for array in kept])
        del kept
    for layer, copies in zip(reversed(layers), reversed(everything), strict=True):
        dy = layer.backward(dy, copies)
    return dy


def run_backward(layers: Sequence[Any], inputs: list[Array], k: int, dy: Array) -> Array:
    while inputs:
        first = (len(inputs) - 1) * k
        dy = run_segment(layers[first : first + k], inputs.pop(), dy)
    return dy


def mask(key: Sequence[int], name: str, shape: tuple[int, ...], p: float) -> Array:
    seed = [*key, *name.encode()]
    random = np.random.default_rng(seed)
    return random.random(shape) >= p


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
