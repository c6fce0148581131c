"""Data parallelism: every rank holds the whole model and works on its share of the batch.

    mpirun -n 4 python -m minidist.data_parallel
    mpirun -n 4 python -m minidist.data_parallel --reduce server

Each rank runs forward and backward on its rows, the gradients are summed over the ranks, and every rank makes the same
update. Two ways to sum: through a master rank, whose links carry N-1 times what anybody else's do; or with a ring
all-reduce for each unit of the model, as soon as the unit's gradient is there and before the backward of the unit below
(gradient buckets: Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.2; the ring in deep learning: Sergeev & Del
Balso, "Horovod", 2018). PyTorch sends a bucket while the next gradients are computed. Here the order and the bytes are
the same, but a rank waits for its messages.

With --bucket-size N gradients go through one buffer of N elements instead: small ones are summed together, large ones
in parts. It is never larger, whatever the model (ZeRO's section 6.2), and each sum is the same to the last bit.

Memory, with mixed precision and Adam: 2Ψ parameters + 2Ψ gradients + 12Ψ optimizer state = 16Ψ bytes on every rank,
however many ranks there are. That is what ZeRO sets out to divide.
"""

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from minidist import contents, ring
from minidist.engine import Engine, Settings
from minidist.memory.buffer import ConstantBuffer
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, flats_of
from minidist.nn.optim import squared_norm
from minidist.nn.tensor import Array


@dataclass(frozen=True)
class Axes:
    """Where an engine stands on axes other than the data axis, if there are any: tensor, pipeline, or both."""

    norm_over: dict[str, Comm] = field(default_factory=dict)  # phase -> ranks that have other parts of the model
    stages: Comm | None = None  # ranks that have other units
    rows: Comm | None = None  # those that share out a batch, where they are more than divide the model states
    speaks: bool = True  # for the loss: of tensor-parallel ranks, which all have it, one does


class DataParallel(Engine):
    """Everything on every rank; gradients are all-reduced."""

    def __init__(
        self, units: list[Unit], settings: Settings, comm: Comm, axes: Axes | None = None, reduce: str = "ring"
    ) -> None:
        self.comm, self.axes = comm, axes or Axes()
        self.all_reduce = {"ring": ring.all_reduce, "server": ring.server_all_reduce}[reduce]
        for flat in flats_of(units):
            flat.divide(flat.comm or comm)
        super().__init__(units, settings)
        self.buffers: dict[Comm, ConstantBuffer] = {}  # with --bucket-size, one for all that the same ranks sum
        if settings.bucket_size:
            self.buffers = {ranks: self.constant_buffer(ranks, settings.bucket_size) for ranks in self.data_axes}

    @property
    def data_axes(self) -> list[Comm]:
        """The ranks that share Flats: those of the data axis, and where some Flats have their own, those as well."""
        return list(dict.fromkeys(flat.comm for flat in self.flats))

    def constant_buffer(self, ranks: Comm, elements: int) -> ConstantBuffer:
        """As large as it was asked to be, less what N ranks cannot share evenly; or as all their gradients together."""
        n, everything = ranks.size, sum(flat.padded for flat in self.flats if flat.comm is ranks)
        size = min(max(elements, n) // n * n, everything)
        room = self.device.empty("bucket", size, self.precision.stored)
        return ConstantBuffer(room, n, partial(self.summed, ranks))

    def rows(self, n: int) -> range:
        """A consecutive share of the n sequences; sizes differ by one at most, and losses are weighted accordingly."""
        ranks = self.axes.rows or self.comm
        share = ring.chunk(n, ranks.size, ranks.rank)
        return range(share.start, share.stop)

    def loss_share(self, loss: float) -> float:
        return loss if self.axes.speaks else 0.0

    def reduce(self, flat: Flat) -> None:
        """Sum a gradient over the ranks, as soon as the step's last backward has completed it here. Losses are weighted
        by their share of the batch: the sum is the mean."""
        if self.buffers:
            self.buffers[flat.comm].put(flat.grad, self.owned(flat)[1])
        else:
            self.summed(flat.comm, flat.grad)

    def summed(self, comm: Comm, gradient: Array) -> Array:
        """In place, over the ranks: all of it."""
        with self.comm.phase("all-reduce gradients"):
            return self.all_reduce(comm, gradient, gradient)

    @np.errstate(over="ignore", invalid="ignore")
    def sum_over_axes(self) -> None:
        """Each rank the piece that it owns. With the data axis alone only the last bucket is left to be summed."""
        for buffer in self.buffers.values():
            buffer.empty()
        for flat in self.flats:
            _, grad = self.owned(flat)
            for phase, ranks in flat.sum_over.items():
                with self.comm.phase(phase):
                    ring.all_reduce(ranks, grad, grad)

    def squared_norm(self) -> float:
        total = self.squares()
        for phase, ranks in self.axes.norm_over.items():
            with self.comm.phase(phase):
                total = float(sum(ring.all_gather(ranks, np.array([total]), ranks.size)))
        return total

    def squares(self) -> float:
        """Σ g² of the model, or of this part of it. What all ranks share, each adds up for itself: shard by shard, as
        ZeRO must, so that they get the same number, bit for bit. Of what fewer share, each rank counts its shard."""
        counted = [flat for flat in self.flats if flat.counted]
        total = 0.0
        for rank in range(self.comm.size):
            shards = [shard_of(flat, flat.grad, rank) for flat in counted if flat.comm is self.comm]
            total += sum(map(squared_norm, shards))
        apart = [shard_of(flat, flat.grad, flat.comm.rank) for flat in counted if flat.comm is not self.comm]
        return total + self.sum_of(sum(map(squared_norm, apart))) if apart else total

    def sum_of(self, mine: float) -> float:
        """Everyone's numbers, added in order of rank, so that all get the same sum."""
        with self.comm.phase("norm"):
            return float(sum(ring.all_gather(self.comm, np.array([mine]), self.comm.size)))

    @property
    def holds_a_stage(self) -> bool:  # type: ignore[override]
        return self.axes.stages is not None

    def gathered(self, named: dict[str, Array]) -> dict[str, Array]:
        everyone = self.axes.stages.gather_object(named) if self.axes.stages else [named]
        return {name: array for stage in everyone or [] for name, array in stage.items()}


def shard_of(flat: Flat, array: Array, rank: int) -> Array:
    """The rank-th shard of an array (padded,)."""
    return array[ring.chunk(flat.padded, flat.shards, rank)]


if __name__ == "__main__":
    contents.run("data_parallel")  # its options, and what the papers promise: programs/data_parallel.py
