"""FSDP: PyTorch's ZeRO-3. It gathers a unit's parameters and reduces its gradients while another unit computes.

    mpirun -n 4 python -m minidist.fsdp
    mpirun -n 4 python -m minidist.fsdp --strategy shard_grad_op
    mpirun -n 4 python -m minidist.fsdp --strategy hybrid_shard --ranks-per-host 2
    mpirun -n 4 python -m minidist.fsdp --backward-prefetch none --accumulate 4 --no-sync

Zhao et al., "PyTorch FSDP: Experiences on scaling fully sharded data parallel", VLDB 2023, arXiv 2304.11277, section 3.

    name in FSDP        name in ZeRO, and in this book                                sent        parameters held
    FlatParameter       Flat (`minidist/nn/flat.py`), of a unit
    unshard, reshard    gather, forget (`minidist/zero3.py`)
    sharding factor F   N: the ranks that divide a unit, of W in all
    FULL_SHARD          ZeRO-3: F = W                                                 3Ψ          2Ψ/F + a few units
    SHARD_GRAD_OP       ZeRO-2: no reshard from the forward to the backward           2Ψ          2Ψ/F + 2Ψ
    HYBRID_SHARD        ZeRO-3 on a host of G ranks, data parallelism across: F = G   3Ψ + 2Ψ/G   2Ψ/F + a few units
    NO_SHARD            data parallelism: F = 1                                       2Ψ          2Ψ
    no_sync             ZeRO-1's accumulation: whole gradients, reduced once a step

SHARD_GRAD_OP is ZeRO-2 on the wire. Between steps it is ZeRO-3: no rank has whole parameters, and the forward gathers.
(PyTorch never reshards the outermost unit after its forward; here it is a unit like any other: `zero3.py --keep-last`.)

Overlap. In `zero3.py` a rank waits for each collective; here it starts one and computes meanwhile. All collectives
share one channel, in the order in which they are started. So it matters when a backward starts the next unit's gather
(section 3.3.2). If a unit computes for b, is gathered in g, and its gradient is reduce-scattered in r:

    --backward-prefetch   the next unit's gather is started             a unit takes
    none                  when it is needed                             b + r + g
    post                  between this one's backward and its reduce    max(b, r) + g    r during the next backward
    pre                   before this one's backward                    max(b, r + g)    and g during this one

In a forward of f a unit takes f + g, and with --forward-prefetch max(f, g) (section 3.3.3). A logical clock counts that
(`minidist/mpi/clock.py`): for one parameter, a forward takes one unit of time, a backward two, and sending it one. All
ranks do the same at the same time, so each rank's own clock tells when the others' messages arrive.

Memory. --prefetch K units are gathered ahead of the one in use. The paper's rate limiter (section 3.4) allows two
gathered units, in flight or in use: K = 1. `post` drops a unit before it gathers the next, and holds K where `pre`
holds K + 1.

Accumulation (section 3.3.4). Each of a micro-batches reduces: 3aΨ. With --no-sync only the last one reduces: (2a+1)Ψ.
The price is a whole gradient, held from the first micro-batch to the last. SHARD_GRAD_OP then keeps whole parameters
just as long, and sends 2Ψ, not 2aΨ.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minidist import contents
from minidist.data_parallel import Axes
from minidist.engine import Loss, Settings
from minidist.memory.recompute import Turn
from minidist.mpi.clock import Clock
from minidist.mpi.comm import Comm, Request
from minidist.nn.flat import Flat
from minidist.nn.layers import Tokens, Unit
from minidist.nn.tensor import Array
from minidist.ring import start_all_gather, start_reduce_scatter
from minidist.zero3 import ZeRO3


class Started(NamedTuple):
    """A collective under way."""

    requests: list[Request]
    through: float  # when it ends, on this rank's clock


# ---- the engine ------------------------------------------------------------------------------------------------------


class FSDP(ZeRO3):
    """ZeRO-3 whose collectives run while units compute. prefetch: units gathered ahead of the one in use."""

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
        super().__init__(units, settings, comm, axes)
        self.reshard_after_forward, self.no_sync = reshard_after_forward, no_sync
        self.forward_prefetch, self.backward_prefetch = forward_prefetch, backward_prefetch
        self.limit = prefetch
        self.coming: list[Turn] = []  # the turns left in this pass
        self.prefetch_before = self.prefetch_after = 0  # units whose gather starts before a unit computes, and after
        self.gathering: dict[Flat, Started] = {}
        self.reducing: list[tuple[Flat, list[Array], Started]] = []  # a unit's Flats, with the parts to add up
        self.clock, self.step_time = Clock(), 0.0  # over a step's forwards and backwards
        self.accumulated = None if no_sync else 1  # None: as in ZeRO-1

    # ---- a pass: which units come, and how many of them are gathered ahead -------------------------------------------
    # PyTorch records the order in a forward, and reverses it (section 3.3.2). Here the model is a list of units.

    def forward(self, x: Tokens, y: Tokens) -> Loss:
        if self.micro_batch == 0:
            self.clock = Clock(bandwidth=self.precision.bytes)  # sending a parameter takes one unit of time
        return super().forward(x, y)

    def expect(self, turns: Sequence[Turn]) -> None:
        self.coming = [*turns]
        self.prefetch_before, self.prefetch_after = self.limit * self.forward_prefetch, 0
        if turns[0].what != "forward":
            now = (self.limit * (self.backward_prefetch == when) for when in ("pre", "post"))
            self.prefetch_before, self.prefetch_after = now

    def backward(self, loss: Loss) -> None:
        super().backward(loss)
        self.finish_reduce()
        self.step_time = self.clock.now

    # ---- parameters --------------------------------------------------------------------------------------------------

    def parameters_of(self, flat: Flat) -> Array:
        """All parameters of a Flat (padded,). When a unit has all that it reads, start the next gathers and compute."""
        unit, what, cost = self.coming[0]
        whole = self.start_gather(flat, what)
        if flat in self.gathering:
            self.wait(self.gathering.pop(flat))
        if flat is unit.reads[-1]:
            self.coming.pop(0)
            self.prefetch(self.prefetch_before)
            self.clock.work(cost * sum(read.padded for read in unit.reads))
        return whole

    def prefetch(self, units: int) -> None:
        """Start to gather what the next units read."""
        for turn in self.coming[:units]:
            for flat in turn.unit.reads:
                self.start_gather(flat, turn.what)

    def start_gather(self, flat: Flat, what: str) -> Array:
        """Start to gather a Flat (padded,), unless it is here or on its way."""
        if flat.gathered is None:
            flat.gathered = self.device.empty("gathered", flat.padded, self.precision.stored)
            with self.comm.phase(f"all-gather {what}", leave_open=True):
                self.gathering[flat] = self.start(start_all_gather(flat.comm, flat.param, flat.gathered))
        return flat.gathered

    def leave(self, unit: Unit, left: Counter[Flat]) -> None:
        """The unit has run; its gradient is not reduced yet."""
        super().leave(unit, left)
        self.prefetch(self.prefetch_after)

    def forget(self, flat: Flat) -> None:
        """Reshard, unless the unit stays whole: until its backward, and with no_sync until the step's last backward."""
        last = self.direction == "backward" and (self.last_micro_batch or not self.no_sync)
        if self.reshard_after_forward or last or not self.training:
            flat.gathered = None

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def collect(self, flat: Flat) -> None:
        self.finish_reduce()  # the previous unit's buckets are freed before this one is made
        super().collect(flat)

    def reduce(self, flat: Flat) -> None:
        """Start to sum its bucket over the ranks. Only one unit's sums are under way at a time."""
        assert flat.bucket is not None
        arriving = self.device.empty("messages", (flat.shards - 1, flat.grad.size), self.precision.summed)
        with self.comm.phase("reduce-scatter gradients", leave_open=True):
            started = self.start(start_reduce_scatter(flat.comm, flat.bucket, arriving))
        self.reducing.append((flat, [*arriving, flat.bucket[self.piece(flat)]], started))

    def finish_reduce(self) -> None:
        """Add this rank's shard of each sum to the step's gradient. The buckets are freed."""
        while self.reducing:
            flat, addends, started = self.reducing.pop(0)
            self.wait(started)
            flat.grad += functools.reduce(np.add, addends)  # in the ring's order, so to the same bits
            flat.bucket = None

    # ---- the channel -------------------------------------------------------------------------------------------------

    def start(self, requests: list[Request]) -> Started:
        """Tell the clock what has just been started."""
        sent = sum(request.array.nbytes for request in requests if request.kind == "isend")
        return Started(requests, self.clock.start(sent))

    def wait(self, started: Started) -> None:
        for request in started.requests:
            request.wait()
        self.clock.wait(started.through)

    def other_counts(self) -> dict[str, Any]:
        return {**super().other_counts(), "time": self.step_time}


if __name__ == "__main__":
    contents.run("fsdp")  # its options, and what the paper promises: programs/fsdp.py
