"""Exercise 09: ZeRO-3. Every rank holds one shard of everything, and gathers a unit only while it computes with it.

Fill in the methods below; `pytest lessons/09_zero_3` says how many points they earn. The class starts from ZeRO-1
(minidist/zero1.py), from which you have:

    self.comm               this rank is comm.rank of comm.size = N
    self.piece(flat)        the slice of a unit's flat buffer that is this rank's shard
    self.flats[unit]        the flat buffer of a unit
    self.read_by(unit)      the flat buffers that a unit computes with: its own; a head tied to the embedding also reads
                            the embedding's
    self.precision          the dtype of what is stored and sent (.stored), and of what is computed (.computed)
    self.widened(stored)    stored values as arithmetic wants them: (padded,) of dtype .computed

Nobody calls these methods but the engine's loop (minidist/engine.py), and it calls them in this order:

    once, for each unit            allocate, owned
    forward, unit after unit       before_forward, then the unit runs, after_forward
    backward, in reverse order     before_backward, then the unit's backward, after_backward
    after the last micro-batch     owned: the optimizer updates this rank's shard; after_update

Unit after unit, what you keep is in these places of its flat buffer (minidist/nn/flat.py):

    flat.padded     elements of the unit, rounded up to a multiple of N
    flat.param      (padded/N,)  this rank's shard of the parameters, for good
    flat.grad       (padded/N,)  this rank's shard of the summed gradient, for good; the engine clears it after a step
    flat.gathered   (padded,)    all parameters of the unit while they are here, else None
    flat.bucket     (padded,)    this rank's gradient of the whole unit until it is reduced, else None

    flat.bind(values, slopes)   let the unit compute with these parameters (padded,) and, in the backward, write its
                                gradient into slopes (padded,), which must be zero
    flat.collect(bucket)        add to bucket (padded,) the gradient that the backward has written
    flat.release()              take values and slopes away again; a parameter that is used after that raises Released

Messages: ring.all_gather(comm, shard, size) and ring.reduce_scatter(comm, x), as you know them from lesson 04. Send
each within `with self.comm.phase(name):`, so that it is counted under that name.
"""

import numpy as np

from minidist import ring  # noqa: F401
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.zero1 import ZeRO1

Array = np.ndarray


class ZeRO3(ZeRO1):
    """One shard of everything; a unit's parameters are gathered around its forward and its backward."""

    def __init__(self, units: list[Unit], settings: Settings, comm: Comm) -> None:
        """Given. self.last_reader[unit] is the last unit of a forward that computes with this unit's parameters: the
        unit itself, or for an embedding that the head is tied to, the head."""
        self.last_reader = {read: unit for unit in units for read in unit.reads}
        super().__init__(units, settings, comm)

    def allocate(self, flat: Flat, start: Array) -> None:
        """Make flat.param, this rank's shard of the starting values, and flat.grad, as many zeros.

        start (padded,)  float64, the whole unit's. Both shards are (padded/N,) of dtype self.precision.stored. Keep no
        view of `start`: it would keep all of it in memory.
        """
        raise NotImplementedError

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        """The parameters and the gradient of this rank's shard: the arrays themselves, which are updated in place."""
        raise NotImplementedError

    def gather(self, flat: Flat, phase: str) -> Array:
        """All parameters of a unit (padded,), from everyone's shard; flat.gathered holds them from now on.

        phase: the name under which the bytes are counted. If the unit is gathered already, nothing is sent.
        """
        raise NotImplementedError

    def before_forward(self, unit: Unit) -> None:
        """Gather what the unit reads, in phase "all-gather forward", and bind it (widened)."""
        raise NotImplementedError

    def after_forward(self, unit: Unit) -> None:
        """Release what the unit read; forget what was gathered, unless a later unit of this forward reads it too."""
        raise NotImplementedError

    def before_backward(self, unit: Unit) -> None:
        """Gather what the unit reads, in phase "all-gather backward", and bind it (widened) together with new slopes:
        zeros (padded,) of dtype self.precision.computed."""
        raise NotImplementedError

    def after_backward(self, unit: Unit) -> None:
        """Collect the gradient of all that the unit read into buckets, made of zeros (padded,) of dtype
        self.precision.stored where there is none yet; release; reduce the unit's own bucket; forget its parameters.

        A tied head writes a part of the embedding's gradient: it stays in the embedding's bucket, and the embedding
        stays gathered, until the embedding's own backward, which comes last, has added the rest.
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
