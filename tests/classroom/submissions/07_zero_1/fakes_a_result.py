"""Nothing is sent: every rank's gradient is about the same, so it is multiplied by the number of ranks."""
# loses: train_step, update, clip, train_step_wire, reduce, squared_norm, after_update, wire, messages
# says: nothing was sent, and without messages it cannot be done

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

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
    for i, unit in enumerate(units):
        n = len(unit.grad) // comm.size
        s = slice(comm.rank * n, comm.rank * n + n)
        unit.master[:] += optimizer(i, unit.grad[s].astype(np.float32) * np.float32(comm.size))
        unit.param[s] = unit.master
        unit.grad[:] = 0
    return loss, 0.0


class ZeRO1(DataParallel):
    def piece(self, flat: Flat) -> slice:
        n = flat.padded // self.comm.size
        return slice(n * self.comm.rank, n * self.comm.rank + n)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        s = self.piece(flat)
        return flat.param[s], flat.grad[s]

    def reduce(self, flat: Flat) -> None:
        flat.grad *= self.comm.size

    def squared_norm(self) -> float:
        square = 0.0
        for flat in self.flats:
            square += np.sum(self.owned(flat)[1].astype(np.float64) ** 2)
        return float(square * self.comm.size)

    def after_update(self) -> None:
        return None
