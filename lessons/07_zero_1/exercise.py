"""Exercise 07: ZeRO-1. Every rank updates its shard of each unit, and keeps the optimizer state of that shard only.

Fill in `train_step`, for the notebook's layers, and then the methods of `ZeRO1`, for a transformer; `pytest
lessons/07_zero_1` says how many points they earn. The two parts are independent.

The engine (minidist/engine.py) calls your methods at these places, for each Flat (minidist/nn/flat.py):

    once, when arrays are made          piece, owned: master copy and moments are made for the rank's shard
    when a Flat's gradient is complete  reduce
    when the last backward is done      squared_norm: its root is the norm by which gradients are clipped
    in the update                       piece, owned: the optimizer updates this rank's shard
    after it                            after_update

You have:

    self.comm          this rank is comm.rank of comm.size = N
    self.flats         all Flats of the model. It contains a Flat that two units read once
    flat.param         (flat.padded,) all parameters, as stored; the same on every rank between two steps
    flat.grad          (flat.padded,) the gradient, as stored: only of this rank's rows until it is reduced
    flat.padded        its number of elements, a multiple of N

Messages: ring.reduce_scatter, ring.all_gather and ring.all_reduce, as you know them from lesson 04. Their `out` may be
the array that is sent, a part of it, or an array that contains it. Call each inside `with self.comm.phase(name):`, so
that its messages are counted under that name.

From lesson 05 the class needs only `rows`. If you have written DataParallel there, you can delete the line that imports
the chapter's and paste yours, with everything it calls. It earns the same points.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minidist import ring  # noqa: F401
from minidist.data_parallel import DataParallel
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat

Array = np.ndarray


class Unit(NamedTuple):
    """Given: a layer's arrays on a rank. They are changed in place. padded is a multiple of N; the elements beyond the
    layer's own are zeros."""

    param: Array  # (padded,) float16: all parameters, the same on every rank
    grad: Array  # (padded,) float16: room for the gradient; zeros between two steps
    master: Array  # (padded/N,) float32: this rank's shard of the master copy, which is updated


def fill_gradients(units: Sequence[Unit], x: Array, y: Array, batch: int) -> float:
    """Given: forward and backward of layers tanh(h W + b), with the squared error / 2 / batch, in float32.

    x, y (R, width) are this rank's rows; all ranks together have `batch` rows. Adds the gradient of these rows to each
    unit's grad, and returns their part of the loss.
    """
    width, h = x.shape[1], [x]
    weights = [unit.param.astype(np.float32) for unit in units]  # W (width, width), then b (width)
    for w in weights:
        h.append(np.tanh(h[-1] @ w[: width**2].reshape(width, width) + w[width**2 : width**2 + width]))
    dh = (h[-1] - y) / np.float32(batch)
    for i in reversed(range(len(units))):
        dz = dh * (1 - h[i + 1] ** 2)
        gradient = np.concatenate([(h[i].T @ dz).reshape(-1), dz.sum(axis=0)])
        units[i].grad[: gradient.size] += gradient  # rounded to float16
        dh = dz @ weights[i][: width**2].reshape(width, width).T
    return float(((h[-1] - y) ** 2).sum() / 2 / batch)


# ---- first the notebook's layers: paste shard_slice, reduce_shard, update_shard and norm_of here ---------------------


def train_step(
    comm: Comm,
    units: Sequence[Unit],
    x: Array,
    y: Array,
    batch: int,
    clip: float,
    optimizer: Callable[[int, Array], Array],
) -> tuple[float, float]:
    """One step of training, the notebook's zero1_step with clipping, on this rank's rows of a batch.

    x, y, batch  as in fill_gradients
    clip         the largest norm of the whole gradient: the shards of all layers and all ranks. A longer gradient is
                 multiplied by clip / norm. 0: no clipping
    optimizer(i, gradient)
                 returns the change (float32) of this rank's shard of units[i] for the shard of the gradient (float32),
                 clipped. It remembers each gradient: call it once for each unit

    Returns this rank's part of the loss (the parts of all ranks add up to the loss), and the norm before clipping. Its
    phases are "reduce-scatter gradients", "norm" and "all-gather parameters".
    """
    raise NotImplementedError


# ---- then a transformer ----------------------------------------------------------------------------------------------


class ZeRO1(DataParallel):
    """Parameters and gradients on every rank, optimizer state of one shard only."""

    def piece(self, flat: Flat) -> slice:
        """Which of a Flat's flat.padded elements are this rank's shard: the rank-th of N equal parts."""
        raise NotImplementedError

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        """The parameters and the gradient of this rank's shard: views of flat.param and flat.grad, because the engine
        updates them in place."""
        raise NotImplementedError

    def reduce(self, flat: Flat) -> None:
        """Sum this rank's shard of the gradient over the ranks, in phase "reduce-scatter gradients". Afterwards the sum
        is in this rank's shard of flat.grad; the contents of the rest do not matter.

        The sum is the mean: every rank's loss is weighted by its share of the batch.
        """
        raise NotImplementedError

    def squared_norm(self) -> float:
        """Σ g² of the whole model's gradient, in phase "norm": the same number on every rank, to the last bit.

        A rank knows only the sums of its own shards. Square in float64: in float16 the square of 256 is infinite
        already. If any rank's shard holds an infinite number, the norm is not finite on any rank.
        """
        raise NotImplementedError

    def after_update(self) -> None:
        """Every rank has updated its shard of each flat.param. Put the shards together again, in place, in phase
        "all-gather parameters"."""
        raise NotImplementedError
