"""The first part alone."""
# keeps: run_forward, run_forward_short, run_forward_memory, run_segment, run_segment_calls, run_segment_memory, run_backward, run_backward_short, run_backward_memory
# says: half_finished.py:\d+ in mask is not written yet: it raises NotImplementedError

from collections.abc import Sequence
from typing import Any

import numpy as np

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


def mask(key: Sequence[int], name: str, shape: tuple[int, ...], p: float) -> Array:
    raise NotImplementedError


def best_interval(n: int, given: float, layer: float) -> int:
    raise NotImplementedError


def chunk(size: int, n: int, i: int) -> slice:
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))


def cut(comm: Comm, x: Array) -> Array:
    raise NotImplementedError


def whole(comm: Comm, part: Array, shape: tuple[int, ...]) -> Array:
    raise NotImplementedError
