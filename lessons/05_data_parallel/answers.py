"""Lesson 05's own functions, which the notebook uses where a gap is open, and its model answer: try before you look.

The chapter, minidist/data_parallel.py, does the same with one bucket for each unit, or with buckets of constant size
through which large gradients are sent in parts.
"""

from collections.abc import Sequence

import numpy as np
from given import layer, layer_backward

from minidist.engine import Engine, Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, flats_of
from minidist.ring import all_reduce

Array = np.ndarray


# ---- the gaps --------------------------------------------------------------------------------------------------------


def share(rows: int, n: int, rank: int) -> range:
    each, more = divmod(rows, n)
    start = rank * each + min(rank, more)
    return range(start, start + each + (rank < more))


def my_part(out: Array, y: Array, batch: int) -> tuple[float, Array]:
    error = out - y
    return float((error**2).sum() / 2 / batch), error / batch


def backward(comm: Comm, flats: Sequence[Array], h: Sequence[Array], dh: Array) -> list[Array]:
    gradients: list[np.ndarray] = []
    for i in reversed(range(len(flats))):
        gradient, dh = layer_backward(flats[i], h[i], h[i + 1], dh)
        with comm.phase("all-reduce gradients"):
            gradients.insert(0, all_reduce(comm, gradient))
    return gradients


def clip_factor(gradients: Sequence[Array], clip: float) -> tuple[float, float]:
    norm = float(np.sqrt(sum(gradient @ gradient for gradient in gradients)))
    return norm, clip / norm if 0 < clip < norm else 1.0


def sending(ready: Sequence[float], takes: float) -> list[float]:
    starts, free = list[float](), 0.0
    for moment in ready:
        starts.append(max(moment, free))
        free = starts[-1] + takes
    return starts


# ---- the exercise ----------------------------------------------------------------------------------------------------


def train_step(comm: Comm, flats: Sequence[Array], x: Array, y: Array, rate: float, clip: float) -> tuple[float, float]:
    mine = share(len(x), comm.size, comm.rank)
    h = [x[mine.start : mine.stop]]
    for flat in flats:
        h.append(layer(flat, h[-1]))
    loss, dh = my_part(h[-1], y[mine.start : mine.stop], len(x))
    gradients = backward(comm, flats, h, dh)
    norm, factor = clip_factor(gradients, clip)
    for flat, gradient in zip(flats, gradients, strict=True):
        flat -= rate * factor * gradient
    return loss, norm


class DataParallel(Engine):
    def __init__(self, units: list[Unit], settings: Settings, comm: Comm) -> None:
        self.comm, self.waiting = comm, list[Flat]()
        self.bucket_size = settings.bucket_size or 0
        for flat in flats_of(units):
            flat.divide(comm)
        super().__init__(units, settings)

    def rows(self, n: int) -> range:
        return share(n, self.comm.size, self.comm.rank)

    def send_bucket(self) -> None:
        bucket = np.concatenate([flat.grad for flat in self.waiting])
        with self.comm.phase("all-reduce gradients"):
            all_reduce(self.comm, bucket, bucket)
        start = 0
        for flat in self.waiting:
            flat.grad[:] = bucket[start : start + flat.padded]
            start += flat.padded
        self.waiting.clear()

    def reduce(self, flat: Flat) -> None:
        self.waiting.append(flat)
        if sum(waits.padded for waits in self.waiting) >= self.bucket_size:
            self.send_bucket()

    def sum_over_axes(self) -> None:
        if self.waiting:
            self.send_bucket()
