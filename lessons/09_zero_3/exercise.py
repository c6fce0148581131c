"""Exercise 09: ZeRO-3. Every rank holds one shard of everything, and gathers a unit only while it computes with it.

Fill in `train_step`, for the notebook's layers, and then the methods of `ZeRO3`, for a transformer; `pytest
lessons/09_zero_3` says how many points they earn. Neither needs the other.

Each method is about one Flat (minidist/nn/flat.py): a unit's parameters, laid behind one another in one buffer. The
engine (minidist/engine.py) goes through the units and calls your methods for the Flats that each of them reads:

    once                        allocate, owned
    before a unit's forward     parameters_of
    after it                    forget
    before its backward         parameters_of
    after it                    collect, forget, reduce
    at the end of the step      owned: the optimizer updates this rank's shard; after_update

A unit reads its own Flat; a *tied* head, which computes with the embedding's matrix and has none of its own, reads the
embedding's too. The engine sees to that: it calls forget when no later unit of the pass reads the Flat, and reduce when
all that read it have had their backward. A batch may come in parts, *micro-batches*: each has a forward and a backward,
and their gradients add up before the step.

A Flat has these arrays, which you make, fill and drop:

    flat.param      (padded/N,)  this rank's shard of the parameters, for good
    flat.grad       (padded/N,)  this rank's shard of the summed gradient, for good; the engine clears it after a step
    flat.gathered   (padded,)    all parameters, from parameters_of to forget; else None
    flat.bucket     (padded,)    this rank's gradient of all of them, from collect to reduce; else None

where flat.padded is its number of elements, rounded up to a multiple of the N ranks. You also have:

    self.comm                this rank is comm.rank of comm.size = N
    self.piece(flat)         the slice of a buffer (padded,) that is this rank's shard
    self.precision.stored    the dtype of all these arrays, and of what is sent
    self.direction           "forward" or "backward": which way the engine is going through the units

Messages: ring.all_gather(comm, shard, size) and ring.reduce_scatter(comm, x), as you know them from lesson 04. Send
each within `with self.comm.phase(name):`, so that it is counted under that name.
"""

import numpy as np

from minidist import ring  # noqa: F401
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.ring import all_gather, reduce_scatter  # noqa: F401
from minidist.zero1 import ZeRO1

Array = np.ndarray

# ---- first the notebook's layers: here is room for gather, forward_layer and backward_layer, as you wrote them -------


def train_step(comm: Comm, shards: list[Array], x: Array, y: Array, batch: int, rate: float) -> float:
    """One step of training of the layers h -> tanh(h W), W (width, width), with the squared error / 2 / batch.

    shards           of each W, this rank's shard, padded with zeros to a multiple of N; updated in place: minus rate
                     times the gradient
    x, y (R, width)  this rank's rows of the batch; there are `batch` on all ranks together, not as many on each

    Returns this rank's part of the loss. It is the notebook's zero3_step, but for any N >= 1 and any width: where N
    does not divide width², the gradient must be padded, as the shards are. Its phases are "all-gather forward",
    "all-gather backward" and "reduce-scatter gradients". No more than one W is whole at a time.
    """
    raise NotImplementedError


# ---- then a transformer ----------------------------------------------------------------------------------------------


class ZeRO3(ZeRO1):
    """One shard of everything; parameters are gathered around a unit's forward and its backward."""

    accumulated = 1  # given: every micro-batch is reduced, for there is no room in which a whole gradient could wait

    def allocate(self, flat: Flat, start: Array) -> None:
        """Make flat.param, this rank's shard of the starting values, and flat.grad, as many zeros.

        start (padded,) float64: all of them. Keep no view of it: that would keep all of it in memory.
        """
        raise NotImplementedError

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        """The parameters and the gradient of this rank's shard: the arrays themselves, which are updated in place."""
        raise NotImplementedError

    def parameters_of(self, flat: Flat) -> Array:
        """All parameters (padded,), from everyone's shard; flat.gathered holds them from now on.

        In phase "all-gather forward" or "all-gather backward". If they are here already, nothing is sent.
        """
        raise NotImplementedError

    def forget(self, flat: Flat) -> None:
        """No later unit of this pass reads the parameters: what must not stay?"""
        raise NotImplementedError

    def collect(self, flat: Flat) -> None:
        """A unit's backward has written a gradient: flat.collect(bucket) adds it to a bucket (padded,).

        There may be a bucket already: a tied head has its backward before the embedding, and leaves a part there. If
        there is none, make it of zeros.
        """
        raise NotImplementedError

    def reduce(self, flat: Flat) -> None:
        """Sum the bucket over the ranks, each rank its shard, in phase "reduce-scatter gradients"; add that to
        flat.grad (a step may have several micro-batches); give the bucket back.

        The sum is the mean: every rank's loss is weighted by its share of the batch.
        """
        raise NotImplementedError

    def after_update(self) -> None:
        """Every rank has updated its shard. What must be done before the next step?"""
        raise NotImplementedError
