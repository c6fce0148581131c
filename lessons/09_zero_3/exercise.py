"""Exercise 09: ZeRO-3. Every rank holds one shard of everything, and gathers a unit only while it computes with it.

Fill in `train_step`, for the notebook's layers, and then the methods of `ZeRO3`, for a transformer; `pytest
lessons/09_zero_3` says how many points they earn. The two parts are independent.

Each method concerns one Flat (minidist/nn/flat.py): a unit's parameters, one after the other in one buffer. The engine
(minidist/engine.py) goes through the units and calls your methods for the Flats that each unit reads:

    once                        allocate, owned
    before a unit's forward     parameters_of
    after it                    forget
    before its backward         parameters_of
    after it                    collect, forget, reduce
    at the end of the step      owned: the optimizer updates this rank's shard; after_update

A unit reads its own Flat. A *tied* head computes with the embedding's matrix and has none of its own, so it reads the
embedding's Flat, too. The engine takes care of that: it calls forget when no later unit of the pass reads the Flat, and
reduce when all units that read it have had their backward. A batch may come in parts, *micro-batches*: each has a
forward and a backward, and their gradients add up before the step.

A Flat has these arrays, which you make, fill and drop:

    flat.param      (padded/N,)  this rank's shard of the parameters, permanent
    flat.grad       (padded/N,)  this rank's shard of the summed gradient, permanent; cleared after each step
    flat.gathered   (padded,)    all parameters, from parameters_of to forget; otherwise None
    flat.bucket     (padded,)    this rank's gradient of all parameters, from collect to reduce; otherwise None

where flat.padded is its number of elements, rounded up to a multiple of the N ranks. You also have:

    self.comm                this rank is comm.rank of comm.size = N
    self.piece(flat)         the slice of a buffer (padded,) that is this rank's shard
    self.precision.stored    the dtype of all these arrays, and of messages
    self.direction           "forward" or "backward": which way the engine is going through the units

Messages: ring.all_gather(comm, shard, size) and ring.reduce_scatter(comm, x), as you know them from lesson 04. Call
each inside `with self.comm.phase(name):`, so that its messages are counted under that name.
"""

import numpy as np

from minidist import ring  # noqa: F401
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.ring import all_gather, reduce_scatter  # noqa: F401
from minidist.zero1 import ZeRO1

Array = np.ndarray

# ---- first the notebook's layers: paste your gather, forward_layer and backward_layer here ---------------------------


def train_step(comm: Comm, shards: list[Array], x: Array, y: Array, batch: int, rate: float) -> float:
    """One step of training of the layers h -> tanh(h W), W (width, width), with the squared error / 2 / batch.

    shards           this rank's shard of each W, padded with zeros to a multiple of N. Update it in place: subtract
                     rate times the gradient
    x, y (R, width)  this rank's rows of the batch. All ranks together have `batch` rows; R may differ between ranks

    Returns this rank's part of the loss. It is the notebook's zero3_step for any N >= 1 and any width: if N does not
    divide width², the gradient must be padded, as the shards are. Its phases are "all-gather forward", "all-gather
    backward" and "reduce-scatter gradients". Only one W is whole at a time.
    """
    raise NotImplementedError


# ---- then a transformer ----------------------------------------------------------------------------------------------


class ZeRO3(ZeRO1):
    """One shard of everything; parameters are gathered around a unit's forward and its backward."""

    accumulated = 1  # given: every micro-batch is reduced, because there is no room where a whole gradient could wait

    def allocate(self, flat: Flat, start: Array) -> None:
        """Make flat.param, this rank's shard of the initial values, and flat.grad, the same number of zeros.

        start (padded,) float64: all initial values. Keep no view of it: a view would keep all of it in memory.
        """
        raise NotImplementedError

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        """The parameters and the gradient of this rank's shard: the arrays themselves, to be updated in place."""
        raise NotImplementedError

    def parameters_of(self, flat: Flat) -> Array:
        """All parameters (padded,), from all ranks' shards; flat.gathered holds them from now on.

        In phase "all-gather forward" or "all-gather backward". If they are here already, send nothing.
        """
        raise NotImplementedError

    def forget(self, flat: Flat) -> None:
        """No later unit of this pass reads the parameters: what must go?"""
        raise NotImplementedError

    def collect(self, flat: Flat) -> None:
        """A unit's backward has written a gradient: flat.collect(bucket) adds it to a bucket (padded,).

        There may be a bucket already: a tied head has its backward before the embedding, and leaves its part there. If
        there is none, make one of zeros.
        """
        raise NotImplementedError

    def reduce(self, flat: Flat) -> None:
        """Sum this rank's shard of the bucket over the ranks, in phase "reduce-scatter gradients". Add the sum to
        flat.grad, because a step may have several micro-batches. Drop the bucket.

        The sum is the mean: every rank's loss is weighted by its share of the batch.
        """
        raise NotImplementedError

    def after_update(self) -> None:
        """Every rank has updated its shard. Must anything be sent before the next step?"""
        raise NotImplementedError
