"""Exercise 08: ZeRO-2. No rank keeps a gradient that it does not need: it reduces each unit's as soon as it is made.

Fill in `train_step`, for the notebook's layers, and then the methods of `ZeRO2`, for a transformer; `pytest
lessons/08_zero_2` says how many points they earn. The two parts are independent.

It starts from lesson 07: `ZeRO2` is a `ZeRO1` that holds less. If you have written your own `ZeRO1`, you can delete the
line that imports the chapter's and paste your class, with everything it calls. It neither earns nor costs points here.

The engine (minidist/engine.py) goes through the units and calls your methods, each for one Flat
(minidist/nn/flat.py):

    once                                allocate, owned
    after a unit's backward             collect
    when a Flat's gradient is complete  reduce: all units that read it have had their backward of this micro-batch
    at the end of the step              owned: the optimizer updates this rank's shard; then lesson 07's all-gather

A *tied* head computes with the embedding's matrix and has none of its own. Its backward comes first, the embedding's
last, and both write into the embedding's gradient: the engine calls collect after each, and reduce after the second.

A Flat has these arrays, which you make, fill and drop:

    flat.param    (padded,)     all parameters, permanent
    flat.grad     (padded/N,)   this rank's shard of the summed gradient, permanent; the engine clears it after a step
    flat.bucket   (padded,)     this rank's gradient of all parameters, from collect to reduce; otherwise None

where flat.padded is its number of elements, rounded up to a multiple of the N ranks. You also have:

    self.comm                this rank is comm.rank of comm.size = N
    self.piece(flat)         lesson 07's: the slice of a buffer (padded,) that is this rank's shard
    self.precision.stored    the dtype of all these arrays, and of messages

Messages: reduce_scatter(comm, x), as you know it from lesson 04, inside `with self.comm.phase(name):`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.ring import all_gather, chunk, reduce_scatter  # noqa: F401
from minidist.zero1 import ZeRO1

Array = np.ndarray


@dataclass
class Unit:
    """Given: a layer's arrays on a rank. They are changed in place. padded is a multiple of N; the elements beyond the
    layer's own are zeros."""

    param: Array  # (padded,): all parameters, the same on every rank
    grad: Array  # (padded/N,): this rank's shard of the gradient; zeros between two steps
    master: Array  # (padded/N,): this rank's shard of the master copy, which is updated


def layer(flat: Array, h: Array) -> Array:
    """Given: tanh(h W + b), for h (rows, width). The flat buffer has W (width, width), then b (width)."""
    width = h.shape[1]
    w, b = flat[: width * width].reshape(width, width), flat[width * width : width * width + width]
    return np.tanh(h @ w + b)


def forward(units: Sequence[Unit], x: Array) -> list[Array]:
    """Given: x (rows, width), and the output of each layer: one array more than there are units."""
    h = [x]
    for unit in units:
        h.append(layer(unit.param, h[-1]))
    return h


def layer_backward(flat: Array, h: Array, out: Array, dout: Array) -> tuple[Array, Array]:
    """Given: the gradient of W and b (width * width + width), from these rows alone; and dh, for the layer below."""
    width = h.shape[1]
    dz = dout * (1 - out**2)
    gradient = np.concatenate([(h.T @ dz).reshape(-1), dz.sum(axis=0)])
    return gradient, dz @ flat[: width * width].reshape(width, width).T


def update_shard(comm: Comm, param: Array, master: Array, change: Array) -> None:
    """Given, from lesson 07: this rank updates its shard of a unit, and then every rank gets all shards."""
    master += change
    mine = param[chunk(param.size, comm.size, comm.rank)]
    mine[...] = master
    with comm.phase("all-gather parameters"):
        all_gather(comm, mine, param.size, out=param)


# ---- first the notebook's layers: paste your reduce_unit, backward and accumulate here -------------------------------


def train_step(
    comm: Comm, units: Sequence[Unit], parts: Sequence[tuple[Array, Array]], batch: int, rate: float
) -> float:
    """One step of training of the layers above, with the squared error / 2 / batch, in micro-batches.

    parts    for each micro-batch (x, y), both (rows, width): this rank's rows. A rank may have no rows of a micro-batch
    batch    the number of rows on all ranks, in all micro-batches together
    rate     the master copy changes by minus rate times the gradient

    Returns this rank's part of the loss of the whole batch. Each layer's gradient is reduced as soon as it is made, in
    phase "reduce-scatter gradients"; only one whole gradient exists at a time. Parameters are sent once a step.
    """
    raise NotImplementedError


# ---- then a transformer ----------------------------------------------------------------------------------------------


class ZeRO2(ZeRO1):
    """Parameters on every rank; gradients and optimizer state of one shard only."""

    accumulated = 1  # given, leave it: micro-batches that add up before reduce is called. There is no room for more

    def allocate(self, flat: Flat, start: Array) -> None:
        """Make flat.param, all parameters, from start (padded,) float64; and flat.grad, a shard of zeros."""
        raise NotImplementedError

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        """The parameters and the gradient of this rank's shard: views, or the arrays themselves, because the engine
        updates them in place."""
        raise NotImplementedError

    def collect(self, flat: Flat) -> None:
        """A unit's backward has left its gradient with the Flat. The Flat has a method of the same name as this one:
        flat.collect(bucket) adds the gradient to a bucket (padded,).

        There may be a bucket already: a tied head has left its part in it. If there is none, make one of zeros.
        """
        raise NotImplementedError

    def reduce(self, flat: Flat) -> None:
        """Sum this rank's shard of the bucket over the ranks, in phase "reduce-scatter gradients". Add the sum to
        flat.grad, because a step may have several micro-batches. Drop the bucket: nothing of it may stay.

        The sum is the mean: every rank's loss is weighted by its share of the batch.
        """
        raise NotImplementedError
