"""Data parallelism: every rank holds the whole model and works on its share of the batch.

    mpirun -n 4 python -m minidist.data_parallel
    mpirun -n 4 python -m minidist.data_parallel --reduce server
    mpirun -n 4 python -m minidist.data_parallel --reduce overlap

Each rank runs forward and backward on its rows, the gradients are summed over the ranks, and every rank makes the same
update. There are two ways to sum. A master rank can do it; its links then carry N-1 times what any other rank's do. Or
each unit's gradient goes through a ring all-reduce, as soon as it is complete and before the backward of the unit
below. These are gradient buckets (Li et al., "PyTorch Distributed", VLDB 2020, arXiv 2006.15704, section 3.2.2);
Sergeev & Del Balso ("Horovod", 2018, arXiv 1802.05799) brought the ring to deep learning. PyTorch sends a bucket while
it computes the next gradients. --reduce overlap does so (`Overlapped`); otherwise a rank waits for its messages. The
order of the units, the bytes and the sums are the same.

With --bucket-size N, gradients go through one buffer of N elements instead: small ones are summed together, large ones
in parts. The buffer's size does not depend on the model (ZeRO, section 6.2), and each sum is the same to the last bit.

Memory, with mixed precision and Adam: 2Ψ parameters + 2Ψ gradients + 12Ψ optimizer state = 16Ψ bytes on every rank,
no matter how many ranks there are. ZeRO sets out to divide these bytes among the ranks.
"""

import functools
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import proxy

import numpy as np

from minidist import collectives, contents, ring
from minidist.engine import Engine, Settings
from minidist.memory.buffer import ConstantBuffer
from minidist.mpi.comm import Comm, Request
from minidist.nn.attend import Span
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, flats_of
from minidist.nn.optim import sum_of_squares
from minidist.nn.tensor import Array


@dataclass(frozen=True)
class Axes:
    """An engine's place on axes other than the data axis, if there are any: tensor, pipeline, or both."""

    norm_over: dict[str, Comm] = field(default_factory=dict)  # phase -> ranks that hold other parts of the model
    others: Comm | None = None  # ranks that hold other units (stages), or other experts
    rows: Comm | None = None  # ranks that share the batch, if more ranks do so than divide the model states
    span: Span | None = None  # this rank's positions, if ranks divide the sequences
    counts_loss: bool = True  # whether this rank adds the loss: only one of a tensor-parallel group does


class DataParallel(Engine):
    """Everything on every rank; gradients are all-reduced."""

    def __init__(
        self, units: list[Unit], settings: Settings, comm: Comm, axes: Axes | None = None, reduce: str = "ring"
    ) -> None:
        super().__init__(units, settings, comm)
        self.axes = axes or Axes()
        # In the ring's order whatever the size: ZeRO, which scatters its sums around the ring, has the same bits.
        by_place = partial(collectives.all_reduce, short=0)
        self.all_reduce = collectives.server_all_reduce if reduce == "server" else by_place  # a server for comparison
        self.buffers: dict[Comm, ConstantBuffer] = {}  # with --bucket-size, one for each group of ranks that sum
        if settings.bucket_size:
            self.buffers = {ranks: self.constant_buffer(ranks, settings.bucket_size) for ranks in self.data_axes}

    def divide(self, units: list[Unit]) -> None:
        for flat in flats_of(units):
            flat.divide(flat.comm or self.comm)

    @property
    def data_axes(self) -> list[Comm]:
        """The groups of ranks that share Flats: the data axis, and the groups of Flats that have their own."""
        return list(dict.fromkeys(flat.comm for flat in self.flats))

    def constant_buffer(self, ranks: Comm, elements: int) -> ConstantBuffer:
        """A buffer of `elements`, rounded down to a multiple of N; never larger than all gradients of these ranks."""
        n, everything = ranks.size, sum(flat.padded for flat in self.flats if flat.comm is ranks)
        size = min(max(elements, n) // n * n, everything)
        room = self.device.empty("bucket", size, self.precision.summed)
        me = proxy(self)  # in a cycle an engine would outlive its last user
        return ConstantBuffer(room, n, lambda gradient: me.summed(ranks, gradient))

    def rows(self, n: int) -> range:
        """A consecutive share of the n sequences. Sizes differ by at most one, and losses are weighted accordingly."""
        ranks = self.axes.rows or self.comm
        share = ring.chunk(n, ranks.size, ranks.rank)
        return range(share.start, share.stop)

    def span(self, length: int) -> Span | None:
        return self.axes.span and replace(self.axes.span, length=length)

    def loss_share(self, loss: float) -> float:
        return loss if self.axes.counts_loss else 0.0

    def reduce(self, flat: Flat) -> None:
        """Sum a gradient over the ranks, as soon as the step's last backward has completed it here. Losses are weighted
        by their share of the batch, so the sum is the mean over the batch."""
        if self.buffers:
            self.buffers[flat.comm].put(flat.grad, self.owned(flat)[1])
        else:
            self.summed(flat.comm, flat.grad)

    def summed(self, comm: Comm, gradient: Array) -> Array:
        """Sum a gradient over the ranks, in place. Here: every rank gets the whole sum."""
        with self.comm.phase("all-reduce gradients"):
            return self.all_reduce(comm, gradient, gradient)

    @np.errstate(over="ignore", invalid="ignore")
    def sum_over_axes(self) -> None:
        """Sum the piece that this rank owns. If there is only the data axis, only the last bucket is left to sum."""
        for buffer in self.buffers.values():
            buffer.empty()
        for flat in self.flats:
            _, grad = self.owned(flat)
            for phase, ranks in flat.sum_over.items():
                with self.comm.phase(phase):
                    collectives.all_reduce(ranks, grad, grad)

    def squared_norm(self) -> float:
        total = self.squares()
        for phase, ranks in self.axes.norm_over.items():
            with self.comm.phase(phase):
                total = float(sum(ring.all_gather(ranks, np.array([total]), ranks.size)))
        return total

    def squares(self) -> float:
        """Σ g² of the model, or of this rank's part of it. Every rank adds up the Flats that all ranks share, shard by
        shard, as ZeRO must: so both get the same bits. If fewer ranks share a Flat, each counts its shard only."""
        counted = [flat for flat in self.flats if flat.counted]
        total = 0.0
        for rank in range(self.comm.size):
            shards = [shard_of(flat, flat.grad, rank) for flat in counted if flat.comm is self.comm]
            total += sum(map(sum_of_squares, shards))
        apart = [shard_of(flat, flat.grad, flat.comm.rank) for flat in counted if flat.comm is not self.comm]
        return total + self.sum_of(sum(map(sum_of_squares, apart))) if apart else total

    def sum_of(self, mine: float) -> float:
        """The sum of one number from each rank, added in order of rank, so that all ranks get the same bits."""
        with self.comm.phase("norm"):
            return float(sum(ring.all_gather(self.comm, np.array([mine]), self.comm.size)))

    @property
    def holds_a_stage(self) -> bool:  # type: ignore[override]
        return self.axes.others is not None

    def collect_on_rank_0(self, named: dict[str, Array]) -> dict[str, Array]:
        everyone = self.axes.others.gather_object(named) if self.axes.others else [named]
        return {name: array for stage in everyone or [] for name, array in stage.items()}


class Overlapped(DataParallel):
    """The same bytes and sums, but a unit's are under way while the units below it compute."""

    def __init__(self, units: list[Unit], settings: Settings, comm: Comm) -> None:
        super().__init__(units, settings, comm)
        self.summing: tuple[Flat, Array, list[Request]] | None = None  # reduce-scatter: one at a time
        self.gathering: list[Request] = []  # all-gathers of sums

    def reduce(self, flat: Flat) -> None:
        """Start to sum a gradient: each rank sums its shard."""
        self.gather_sum()
        mine = shard_of(flat, flat.grad, flat.comm.rank)
        arriving = self.device.empty("messages", (flat.comm.size - 1, mine.size), mine.dtype)
        with self.comm.phase("all-reduce gradients", leave_open=True):
            self.summing = flat, arriving, ring.start_reduce_scatter(flat.comm, flat.grad, arriving)

    def gather_sum(self) -> None:
        """Complete the sum that is under way, and start to give it to all ranks."""
        if self.summing:
            (flat, arriving, requests), self.summing = self.summing, None
            for request in requests:
                request.wait()
            mine = shard_of(flat, flat.grad, flat.comm.rank)
            mine[...] = functools.reduce(np.add, [*arriving, mine])  # in the ring's order, so to the same bits
            with self.comm.phase("all-reduce gradients", leave_open=True):
                self.gathering += ring.start_all_gather(flat.comm, mine, flat.grad)

    def sum_over_axes(self) -> None:
        self.gather_sum()
        while self.gathering:
            self.gathering.pop(0).wait()
        super().sum_over_axes()


def shard_of(flat: Flat, array: Array, rank: int) -> Array:
    """The rank-th shard of an array (padded,)."""
    return array[ring.chunk(flat.padded, flat.shards, rank)]


if __name__ == "__main__":
    contents.run("data_parallel")  # its options, and what the papers promise: programs/data_parallel.py
