"""Waits until the bucket is full; but nobody fills it meanwhile. It is met in reduce, or in the generator in it."""
# loses: reduce
# says: (?s)processor time.*endless_loop.py:\d+ in (reduce|<genexpr>)
# patience: 2

from collections.abc import Sequence

import numpy as np

from minidist import ring
from minidist.engine import Engine, Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, flats_of

Array = np.ndarray


def layer(flat: Array, h: Array) -> Array:
    width = h.shape[1]
    w, b = flat[: width * width].reshape(width, width), flat[width * width :]
    return np.tanh(h @ w + b)


def layer_backward(flat: Array, h: Array, out: Array, dout: Array) -> tuple[Array, Array]:
    width = h.shape[1]
    dz = dout * (1 - out**2)
    gradient = np.concatenate([(h.T @ dz).reshape(-1), dz.sum(axis=0)])
    return gradient, dz @ flat[: width * width].reshape(width, width).T


def share(rows: int, n: int, rank: int) -> range:
    sizes = [rows // n + (r < rows % n) for r in range(n)]
    return range(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def train_step(comm: Comm, flats: Sequence[Array], x: Array, y: Array, rate: float, clip: float) -> tuple[float, float]:
    batch = len(x)
    mine = share(batch, comm.size, comm.rank)
    x, y = x[mine.start : mine.stop], y[mine.start : mine.stop]
    h = [x]
    for flat in flats:
        h.append(layer(flat, h[-1]))
    loss = float(((h[-1] - y) ** 2).sum() / 2 / batch)
    dh = (h[-1] - y) / batch
    gradients = [np.empty(0)] * len(flats)
    for i in reversed(range(len(flats))):
        gradient, dh = layer_backward(flats[i], h[i], h[i + 1], dh)
        with comm.phase("all-reduce gradients"):
            gradients[i] = ring.all_reduce(comm, gradient)
    norm = float(np.sqrt(sum((gradient**2).sum() for gradient in gradients)))
    scale = clip / norm if clip and norm > clip else 1.0
    for flat, gradient in zip(flats, gradients, strict=True):
        flat -= rate * scale * gradient
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
        sizes = [flat.padded for flat in self.waiting]
        buffer = np.concatenate([flat.grad for flat in self.waiting])
        with self.comm.phase("all-reduce gradients"):
            ring.all_reduce(self.comm, buffer, buffer)
        for flat, total in zip(self.waiting, np.split(buffer, np.cumsum(sizes)[:-1]), strict=True):
            flat.grad[:] = total
        self.waiting = []

    def reduce(self, flat: Flat) -> None:
        self.waiting.append(flat)
        while sum(flat.padded for flat in self.waiting) < self.bucket_size:
            pass
        self.send_bucket()

    def sum_over_axes(self) -> None:
        if self.waiting:
            self.send_bucket()
