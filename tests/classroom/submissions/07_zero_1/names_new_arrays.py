"""Everything is right, but in arrays that nobody else has."""
# loses: update, reduce, after_update
# says: param of layer \d is as it was: write into the array itself, in place
# says: is another array now|it stays an array

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minidist import ring
from minidist.data_parallel import DataParallel
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat

Array = np.ndarray


class Unit(NamedTuple):
    """a layer's arrays on a rank. They are changed in place. padded is a multiple of N; what is more than the
    layer has, are zeros."""

    param: Array  # (padded,) float16: all parameters, the same on every rank
    grad: Array  # (padded,) float16: room for the gradient; zeros between two steps
    master: Array  # (padded/N,) float32: this rank's shard of what is updated


def fill_gradients(units: Sequence[Unit], x: Array, y: Array, batch: int) -> float:
    """forward and backward of layers tanh(h W + b), with the squared error / 2 / batch, in float32.

    x, y (R, width) are this rank's rows; there are `batch` on all ranks together. Adds the gradient of these rows alone
    to each unit's grad, and returns their part of the loss.
    """
    width, h = x.shape[1], [x]
    weights = [unit.param.astype(np.float32) for unit in units]  # W (width, width), and behind it b (width)
    for w in weights:
        h.append(np.tanh(h[-1] @ w[: width**2].reshape(width, width) + w[width**2 : width**2 + width]))
    dh = (h[-1] - y) / np.float32(batch)
    for i in reversed(range(len(units))):
        dz = dh * (1 - h[i + 1] ** 2)
        gradient = np.concatenate([(h[i].T @ dz).reshape(-1), dz.sum(axis=0)])
        units[i].grad[: gradient.size] += gradient  # rounded to float16
        dh = dz @ weights[i][: width**2].reshape(width, width).T
    return float(((h[-1] - y) ** 2).sum() / 2 / batch)


def my_slice(size: int, n: int, rank: int) -> slice:
    m = size // n
    return slice(m * rank, m * rank + m)


def train_step(
    comm: Comm,
    units: Sequence[Unit],
    x: Array,
    y: Array,
    batch: int,
    clip: float,
    optimizer: Callable[[int, Array], Array],
) -> tuple[float, float]:
    loss = fill_gradients(units, x, y, batch)
    shards = []
    for unit in units:
        with comm.phase("reduce-scatter gradients"):
            shards.append(ring.reduce_scatter(comm, unit.grad).astype(np.float32))
    square = sum(np.sum(shard.astype(np.float64) ** 2) for shard in shards)
    with comm.phase("norm"):
        norm = float(np.sqrt(ring.all_reduce(comm, np.array([square]))[0]))
    if clip and norm > clip:
        shards = [shard * np.float32(clip / norm) for shard in shards]
    for i, unit in enumerate(units):
        unit.master[:] += optimizer(i, shards[i])
        s = my_slice(len(unit.param), comm.size, comm.rank)
        param = unit.param.copy()
        param[s] = unit.master
        with comm.phase("all-gather parameters"):
            param = ring.all_gather(comm, param[s], len(param))
        unit.grad.fill(0)
    return loss, norm


class ZeRO1(DataParallel):
    def piece(self, flat: Flat) -> slice:
        n = flat.padded // self.comm.size
        return slice(n * self.comm.rank, n * self.comm.rank + n)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        s = self.piece(flat)
        return flat.param[s], flat.grad[s]

    def reduce(self, flat: Flat) -> None:
        with self.comm.phase("reduce-scatter gradients"):
            flat.grad = ring.reduce_scatter(self.comm, flat.grad)

    def squared_norm(self) -> float:
        square = 0.0
        for flat in self.flats:
            square += np.sum(self.owned(flat)[1].astype(np.float64) ** 2)
        with self.comm.phase("norm"):
            return float(ring.all_reduce(self.comm, np.array([square]))[0])

    def after_update(self) -> None:
        for flat in self.flats:
            with self.comm.phase("all-gather parameters"):
                flat.param = ring.all_gather(self.comm, self.owned(flat)[0], flat.padded)
