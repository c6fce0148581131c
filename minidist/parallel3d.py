"""3D parallelism: data, pipeline and tensor parallelism at once, each along an axis of its own.

    mpirun -n 8 python -m minidist.parallel3d --data 2 --pipeline 2 --tensor 2 --zero 1
    mpirun -n 8 python -m minidist.parallel3d --data 8 --zero 3 --shard 4

Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021, section 3
(how the kinds are combined). Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2 (hybrid sharding).

    tensor     innermost     changes what a unit is: a t-th of each layer, with communication inside
    pipeline   in between    changes which units a rank has, and when they run: those of its stage, by a schedule
    data       outermost     changes what happens around a unit: its gradients are summed, its optimizer state divided

None of them asks what the others do. So one goes in front of another: the engines below are those of the earlier
chapters in a row, and each talks along its own axis. Rank (i·p + j)·t + k works on the i-th share of each micro-batch,
with the j-th stage of the model, with the k-th part of every layer in it. Tensor parallelism sends most, so its ranks
are next to each other; data parallelism can wait until the end of the step, so its ranks are farthest apart.

A stage sends to its counterparts on the next one: the same data, the same part. Gradients of a tied embedding are
summed by the first and the last stage, part by part. A gradient's norm, and so whether it overflowed, goes around
every axis in turn: over the shards of a unit, over the stages, over the parts; every parameter is counted once.

With a pipeline ZeRO's stage is 0 or 1. Stage 2 keeps no whole gradient in which micro-batches could add up: it would
reduce-scatter after each of them, and stage 3 also gather parameters for each.

Hybrid sharding is ZeRO-3 within a host and data parallelism across: the G ranks of a host share one copy of the model,
so gathering parameters never leaves the host. Only the G-th part of the gradients that a rank keeps is summed across
the W/G hosts: 2M/G·(W-G)/W bytes from a rank, where ZeRO-3 over all W ranks would send most of its 3M across.
"""

import sys
from collections.abc import Collection
from typing import Any

from minidist import ring, train
from minidist.data_parallel import DataParallel
from minidist.engine import Engine, Settings
from minidist.grid import options as parallel3d_options
from minidist.grid.claims import claims, print_closing
from minidist.grid.mesh import Mesh
from minidist.mpi.comm import Comm
from minidist.mpi.run import run
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.nn.tensor import Array
from minidist.pipeline import Pipeline
from minidist.pp.claims import show_clocks
from minidist.tensor_parallel import TensorParallel
from minidist.zero1 import ZeRO1
from minidist.zero2 import ZeRO2
from minidist.zero3 import ZeRO3

# ---- three axes ------------------------------------------------------------------------------------------------------


class TensorPipeline(TensorParallel, Pipeline):
    """A stage is a group of tensor-parallel ranks, and each talks to its counterparts on the stages beside it."""

    def crossing(self, tokens: Array) -> tuple[int, ...]:
        """With sequence parallelism a rank has, and sends, its shard of the positions: (B, T/t, C)."""
        sequences, positions, width = super().crossing(tokens)
        return sequences, positions // self.group.comm.size if self.group.sequence else positions, width


class TensorPipelineData(TensorPipeline, DataParallel):
    """Several such pipelines, each with its share of every micro-batch."""


class TensorPipelineZeRO1(TensorPipeline, ZeRO1):
    """Ranks with the same part of the same stage divide its optimizer state."""


# ---- without a pipeline, every stage of ZeRO -------------------------------------------------------------------------


class TensorData(TensorParallel, DataParallel):
    """Each data-parallel rank is a group of tensor-parallel ranks."""


class TensorZeRO1(TensorParallel, ZeRO1):
    """Each part of the model has its optimizer state divided among the data-parallel ranks that hold it."""


class TensorZeRO2(TensorParallel, ZeRO2):
    """Gradients as well."""


class HybridSharded(ZeRO3):
    """ZeRO-3 among the ranks of a host (comm); gradients are summed with the same shard's on other hosts (across).

    host: world ranks of everyone on this host; what is sent to others is counted.
    """

    def __init__(self, units: list[Unit], settings: Settings, comm: Comm, across: Comm, host: Collection[int]) -> None:
        self.across, self.host, self.left_host = across, host, 0
        super().__init__(units, settings, comm)

    def rows(self, n: int) -> range:
        """All W ranks share out the batch."""
        share = ring.chunk(n, self.across.size * self.comm.size, self.across.rank * self.comm.size + self.comm.rank)
        return range(share.start, share.stop)

    def reduce(self, flat: Flat) -> None:
        """Reduce-scatter within the host; once the step's gradient is complete, all-reduce the shard across hosts."""
        super().reduce(flat)
        if self.last_micro_batch:
            with self.comm.phase("all-reduce across hosts"):
                ring.all_reduce(self.across, flat.grad, flat.grad)

    def step(self) -> None:
        super().step()
        sent = self.comm.ledger.sent.items()
        self.left_host = sum(nbytes for (_, peer), (nbytes, _) in sent if peer not in self.host)

    def counted(self) -> dict[str, Any]:
        return {**super().counted(), "left_host": self.left_host}


class TensorZeRO3(TensorParallel, HybridSharded):
    """Parameters as well: among all of the data-parallel ranks, or those of one host."""


# ---- the run ---------------------------------------------------------------------------------------------------------


def make_engine(units: list[Unit], settings: Settings, comm: Comm, options: train.Options) -> Engine:
    """The engine of one place in the grid. ZeRO-3 over all data-parallel ranks is hybrid sharding on a single host."""
    mesh = Mesh(comm, data=options.data_ranks, pipeline=options.pipeline, tensor=options.tensor)
    tensor: dict[str, Any] = {"tensor": mesh.along("tensor"), "sequence": options.sequence_parallel}
    if options.zero == 3:
        mesh = Mesh(comm, replicate=options.data_ranks // options.shard, shard=options.shard, tensor=options.tensor)
        shard, across, host = mesh.along("shard"), mesh.along("replicate"), mesh.along("shard", "tensor").world_ranks
        return TensorZeRO3(units, settings, comm=shard, across=across, host=host, **tensor)
    data = mesh.along("data")
    if options.pipeline > 1:
        staged = (TensorPipelineData, TensorPipelineZeRO1)[options.zero]
        stages = {"pipe": mesh.along("pipeline"), "parts": options.parts, "schedule": options.schedule}
        return staged(units, settings, comm=data, **stages, **tensor)
    engine = (TensorData, TensorZeRO1, TensorZeRO2)[options.zero]
    return engine(units, settings, comm=data, **tensor)


def main(comm: Comm, job: train.Job) -> int:
    """Train and report; of a pipeline also show what the clocks say."""
    engine = make_engine(job.units, job.settings, comm, job.options)
    status = train.run_job(job, engine, comm, claims, print_closing)
    if isinstance(engine, Pipeline):
        pipeline, tensor = job.options.pipeline, job.options.tensor
        show_clocks(comm, engine.worker.timeline, job.options, of_stages=slice(0, pipeline * tensor, tensor))
    return status


if __name__ == "__main__":
    options = train.parser(__doc__ or "", "parallel3d")  # python -OO drops docstrings
    parallel3d_options.add_options(options)
    run(prepare=lambda comm: parallel3d_options.prepare(options, sys.argv[1:], comm.size), main=main)
