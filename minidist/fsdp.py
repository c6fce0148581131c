"""FSDP: ZeRO-3 as PyTorch has it. A unit's parameters come, and its gradient goes, while another unit computes.

    mpirun -n 4 python -m minidist.fsdp
    mpirun -n 4 python -m minidist.fsdp --strategy shard_grad_op
    mpirun -n 4 python -m minidist.fsdp --strategy hybrid_shard --ranks-per-host 2
    mpirun -n 4 python -m minidist.fsdp --backward-prefetch none --accumulate 4 --no-sync

Zhao et al., "PyTorch FSDP: Experiences on scaling fully sharded data parallel", VLDB 2023, section 3.

    what FSDP calls     ZeRO calls, and this book                                     sent        parameters held
    FlatParameter       Flat (`minidist/nn/flat.py`), of a unit
    unshard, reshard    gather, forget (`minidist/zero3.py`)
    sharding factor F   N: the ranks that divide a unit, of W in all
    FULL_SHARD          ZeRO-3: F = W                                                 3Ψ          2Ψ/F + a few units
    SHARD_GRAD_OP       ZeRO-2: no reshard from the forward to the backward           2Ψ          2Ψ/F + 2Ψ
    HYBRID_SHARD        ZeRO-3 on a host of G ranks, data parallelism across: F = G   3Ψ + 2Ψ/G   2Ψ/F + a few units
    NO_SHARD            data parallelism: F = 1                                       2Ψ          2Ψ
    no_sync             ZeRO-1's accumulation: whole gradients, reduced once a step

SHARD_GRAD_OP is ZeRO-2 on the wire; between steps it is ZeRO-3: nobody has whole parameters, and the forward gathers.
(The outermost unit, which PyTorch never reshards after its forward, is here as the others: `zero3.py --keep-last`.)

Overlap. In `zero3.py` a rank waits for each collective; here it starts them, and computes meanwhile. One channel has
them all, in the order in which they are started, so it matters when a backward starts the next unit's gather (section
3.3.2). Where a unit computes for b, is gathered in g, and its gradient is reduce-scattered in r:

    --backward-prefetch   the next unit's gather is started             a unit takes
    none                  when it is needed                             b + r + g
    post                  between this one's backward and its reduce    max(b, r) + g    r beside the next backward
    pre                   before this one's backward                    max(b, r + g)    and g beside this one

In a forward of f a unit takes f + g, and with --forward-prefetch max(f, g) (section 3.3.3). A logical clock counts that
(`minidist/mpi/clock.py`): in a unit of time a rank runs the forward of a parameter, half its backward, or sends it. All
ranks do the same at the same time, so each knows by its own clock when what the others send is there.

Memory. --prefetch K units are gathered ahead of the one in use. The paper's rate limiter (section 3.4) lets two gathers
be in flight or in use: K = 1. `post` drops a unit before it sends for the next, and holds K where `pre` holds K + 1.

Accumulation (section 3.3.4). Each of a micro-batches reduces, 3aΨ, or with --no-sync the last one for all: (2a+1)Ψ. The
price is a whole gradient, held from the first to the last. SHARD_GRAD_OP then keeps parameters as long: 2Ψ, not 2aΨ.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minidist import contents, ring
from minidist.data_parallel import Axes
from minidist.engine import Loss, Settings
from minidist.memory.recompute import Turn
from minidist.mpi.clock import Clock
from minidist.mpi.comm import Comm, Request
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.nn.tensor import Array
from minidist.zero3 import ZeRO3

# ---- collectives under way -------------------------------------------------------------------------------------------


def start_all_gather(comm: Comm, x: Array, out: Array) -> list[Request]:
    """Put everyone's shard x (S/N,) together in out (S,). Each goes straight to everyone: the bytes of the ring, in
    which every message has to wait for the one before."""
    parts = ring.cut(out, comm.size)
    parts[comm.rank][...] = x
    return [
        *(comm.irecv(parts[peer], peer) for peer in other_ranks(comm)),
        *(comm.isend(x, peer) for peer in other_ranks(comm)),
    ]


def start_reduce_scatter(comm: Comm, x: Array, arriving: Array) -> list[Request]:
    """Send each rank its shard of x (S,), and receive what the others have of this rank's: arriving (N-1, S/N)."""
    parts = ring.cut(x, comm.size)
    receives = [comm.irecv(shard, peer) for shard, peer in zip(arriving, other_ranks(comm), strict=True)]
    return [*receives, *(comm.isend(parts[peer], peer) for peer in other_ranks(comm))]


def other_ranks(comm: Comm) -> list[int]:
    """From the next rank on, around: the order in which the ring adds up."""
    return [(comm.rank + distance) % comm.size for distance in range(1, comm.size)]


class Started(NamedTuple):
    """A collective under way."""

    requests: list[Request]
    through: float  # when it will be, by this rank's clock


# ---- the engine ------------------------------------------------------------------------------------------------------


class FSDP(ZeRO3):
    """ZeRO-3 whose collectives go on while units compute. prefetch: units gathered ahead, of the one in use."""

    def __init__(
        self,
        units: list[Unit],
        settings: Settings,
        comm: Comm,
        axes: Axes | None = None,
        reshard_after_forward: bool = True,
        forward_prefetch: bool = False,
        backward_prefetch: str = "pre",
        prefetch: int = 1,
        no_sync: bool = False,
    ) -> None:
        self.reshard_after_forward, self.no_sync = reshard_after_forward, no_sync
        self.forward_prefetch, self.backward_prefetch = forward_prefetch, backward_prefetch
        self.limit = prefetch
        self.coming: list[Turn] = []  # that this pass still has
        self.ahead = self.behind = 0  # how many of them are sent for before a unit computes, and after
        self.gathering: dict[Flat, Started] = {}
        self.reducing: tuple[Flat, list[Array], Started] | None = None  # with what is to be added up
        self.clock, self.took = Clock(), 0.0  # of the forwards and backwards of a step
        self.accumulated = None if no_sync else 1  # None: as in ZeRO-1
        super().__init__(units, settings, comm, axes)

    # ---- a pass: which units come, and how many of them are sent for -------------------------------------------------
    # PyTorch records the order in a forward, and takes it backwards (section 3.3.2). Here the model is a list of units.

    def forward(self, x: Array, y: Array) -> Loss:
        if self.micro_batch == 0:
            self.clock = Clock(bandwidth=self.precision.bytes)  # to send a parameter takes a unit of time
        return super().forward(x, y)

    def expect(self, turns: Sequence[Turn]) -> None:
        self.coming = [*turns]
        self.ahead, self.behind = self.limit * self.forward_prefetch, 0
        if turns[0].what != "forward":
            self.ahead, self.behind = (self.limit * (self.backward_prefetch == when) for when in ("pre", "post"))

    def backward(self, loss: Loss) -> None:
        super().backward(loss)
        self.finish_reduce()
        self.took = self.clock.now

    # ---- parameters --------------------------------------------------------------------------------------------------

    def parameters_of(self, flat: Flat) -> Array:
        """All of them (padded,). When a unit has all that it reads, the next ones' are sent for, and it computes."""
        unit, what, cost = self.coming[0]
        whole = self.start_gather(flat, what)
        if flat in self.gathering:
            self.wait(self.gathering.pop(flat))
        if flat is unit.reads[-1]:
            self.coming.pop(0)
            self.prefetch(self.ahead)
            self.clock.work(cost * sum(read.padded for read in unit.reads))
        return whole

    def prefetch(self, units: int) -> None:
        """Start to gather what the next units read."""
        for turn in self.coming[:units]:
            for flat in turn.unit.reads:
                self.start_gather(flat, turn.what)

    def start_gather(self, flat: Flat, what: str) -> Array:
        """Send for all of a Flat (padded,), unless it is here or on its way."""
        if flat.gathered is None:
            flat.gathered = self.device.empty("gathered", flat.padded, self.precision.stored)
            with self.comm.phase(f"all-gather {what}", leave_open=True):
                self.gathering[flat] = self.start(start_all_gather(flat.comm, flat.param, flat.gathered))
        return flat.gathered

    def leave(self, unit: Unit, left: Counter[Flat]) -> None:
        """The unit has run, and its gradient is not reduced yet."""
        super().leave(unit, left)
        self.prefetch(self.behind)

    def forget(self, flat: Flat) -> None:
        """Reshard, but for what stays: from the forward to the backward, and with no_sync to the step's last one."""
        last = self.direction == "backward" and (self.last_micro_batch or not self.no_sync)
        if self.reshard_after_forward or last or not self.training:
            flat.gathered = None

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def collect(self, flat: Flat) -> None:
        if flat.bucket is None:
            self.finish_reduce()  # the last one's bucket goes before this one's comes
        super().collect(flat)

    def reduce(self, flat: Flat) -> None:
        """Start to sum its bucket over the ranks; of these sums one is under way at a time."""
        self.finish_reduce()
        assert flat.bucket is not None
        arriving = self.device.empty("messages", (flat.shards - 1, flat.grad.size), self.precision.stored)
        with self.comm.phase("reduce-scatter gradients", leave_open=True):
            started = self.start(start_reduce_scatter(flat.comm, flat.bucket, arriving))
        self.reducing = flat, [*arriving, flat.bucket[self.piece(flat)]], started

    def finish_reduce(self) -> None:
        """Add the sum, this rank's shard of it, to what there is of this step. The bucket is given back."""
        if self.reducing:
            flat, addends, started = self.reducing
            self.wait(started)
            flat.grad += functools.reduce(np.add, addends)  # as the ring adds them up, so to the same bits
            flat.bucket = self.reducing = None

    # ---- the channel -------------------------------------------------------------------------------------------------

    def start(self, requests: list[Request]) -> Started:
        """Put on the clock what has just been started."""
        sent = sum(request.array.nbytes for request in requests if request.kind == "isend")
        return Started(requests, self.clock.start(sent))

    def wait(self, started: Started) -> None:
        for request in started.requests:
            request.wait()
        self.clock.wait(started.through)

    def counted(self) -> dict[str, Any]:
        return {**super().counted(), "time": self.took}


if __name__ == "__main__":
    contents.run("fsdp")  # its options, and what the paper promises: programs/fsdp.py
