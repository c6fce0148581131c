"""A right answer to exercise 07, written from the skeleton."""

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
    """Forward and backward of layers tanh(h W + b), with the squared error / 2 / batch, in float32.

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


def shard_slice(size: int, n: int, rank: int) -> slice:
    each = (size + n - 1) // n
    return slice(rank * each, rank * each + each)


def reduce_shard(comm: Comm, grad: Array) -> Array:
    shard = grad[shard_slice(grad.size, comm.size, comm.rank)]
    with comm.phase("reduce-scatter gradients"):
        ring.reduce_scatter(comm, grad, shard)
    return shard


def update_shard(comm: Comm, param: Array, master: Array, change: Array) -> None:
    master += change
    shard = param[shard_slice(param.size, comm.size, comm.rank)]
    shard[:] = master
    with comm.phase("all-gather parameters"):
        ring.all_gather(comm, shard, param.size, param)


def norm_of(comm: Comm, shards: Sequence[Array]) -> float:
    squares = 0.0
    for shard in shards:
        wide = shard.astype(np.float64)
        squares += float(wide @ wide)
    with comm.phase("norm"):
        everyones = ring.all_gather(comm, np.array([squares]), comm.size)
    return float(np.sqrt(np.sum(everyones)))


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
        shards.append(reduce_shard(comm, unit.grad))
    norm = norm_of(comm, shards)
    factor = clip / norm if clip and norm > clip else 1.0
    for i, (unit, shard) in enumerate(zip(units, shards, strict=True)):
        gradient = shard.astype(np.float32) * np.float32(factor)
        update_shard(comm, unit.param, unit.master, optimizer(i, gradient))
        unit.grad[:] = 0
    return loss, norm


class ZeRO1(DataParallel):
    def piece(self, flat: Flat) -> slice:
        each = flat.padded // self.comm.size
        return slice(self.comm.rank * each, (self.comm.rank + 1) * each)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        return flat.param[self.piece(flat)], flat.grad[self.piece(flat)]

    def reduce(self, flat: Flat) -> None:
        with self.comm.phase("reduce-scatter gradients"):
            ring.reduce_scatter(self.comm, flat.grad, flat.grad[self.piece(flat)])

    def squared_norm(self) -> float:
        squares = 0.0
        for flat in self.flats:
            wide = flat.grad[self.piece(flat)].astype(np.float64)
            squares += float(wide @ wide)
        with self.comm.phase("norm"):
            everyones = ring.all_gather(self.comm, np.array([squares]), self.comm.size)
        return float(np.sum(everyones))

    def after_update(self) -> None:
        for flat in self.flats:
            with self.comm.phase("all-gather parameters"):
                ring.all_gather(self.comm, flat.param[self.piece(flat)], flat.padded, flat.param)
