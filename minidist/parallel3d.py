"""3D parallelism: data, pipeline and tensor parallelism at once, each along an axis of its own.

    mpirun -n 8 python -m minidist.parallel3d --dp 2 --pp 2 --tp 2 --zero 1
    mpirun -n 8 python -m minidist.parallel3d --dp 8 --zero 3 --ranks-per-host 4
    mpirun -n 8 python -m minidist.parallel3d --pp 2 --cp 2 --tp 2 --experts 8

Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021,
arXiv 2104.04473, section 3 (how to combine the three kinds). Zhao et al., "PyTorch FSDP", VLDB 2023, arXiv 2304.11277,
section 3.2.2 (hybrid sharding).

    tensor     innermost     changes what a unit is: 1/t of each layer, with communication inside
    context    next to it    changes which positions a rank works on, and how attention finds the others
    pipeline   in between    changes which units a rank has, and when they run: those of its stage, by a schedule
    data       outermost     changes what happens around a unit: its gradients are summed, its model states divided

If the model has mixtures of experts, layout.ep of the data and context ranks divide them: these ranks have different
tokens, so a token finds its experts among them (`minidist/expert_parallel.py`). Tensor-parallel ranks have the same
tokens, and cut each expert.

No axis depends on what the others do: `grid` below applies them one after another. They share one thing, what each Flat
of parameters says about itself (`minidist/nn/flat.py`): which ranks divide it, over which other ranks its gradient is
summed, and which rank counts it in the norm. Rank (i·p + j)·t + k works on the i-th share of each micro-batch, with the
k-th part of every layer of the model's j-th stage. (With N context ranks, ((i·p + j)·N + n)·t + k has the n-th share of
its positions.) Tensor parallelism sends most, so its ranks are next to each other; data parallelism sends least often,
so its ranks are farthest apart.

A rank sends to its counterpart on the next stage, which has the same data and the same part. The first and the last
stage sum the gradients of a tied embedding, part by part. A gradient's norm, which also tells whether it overflowed, is
summed along every axis in turn: over the shards, the parts, and the stages. Every parameter is counted once.

With a pipeline, ZeRO-2 has no place to add up the gradients of m micro-batches, and sums each of them over the ranks:
(m+1)Ψ instead of 2Ψ. ZeRO-3 also gathers parameters for each: 3mΨ.
"""

from collections.abc import Callable
from dataclasses import replace

from minidist import contents, context_parallel, tensor_parallel
from minidist.cp.group import ContextGroup
from minidist.data_parallel import Axes, DataParallel
from minidist.engine import Settings
from minidist.expert_parallel import ExpertGroup, share_experts
from minidist.expert_parallel import split as give_experts
from minidist.layout import Layout, Mesh
from minidist.mpi.comm import Comm
from minidist.nn.attend import Span
from minidist.nn.layers import Unit
from minidist.pipeline import Pipeline
from minidist.pp.schedules import SCHEDULES
from minidist.pp.stage import stage_of
from minidist.zero3 import LADDER, across_hosts


def grid(
    units: list[Unit],
    settings: Settings,
    comm: Comm,
    layout: Layout,
    zero: int = 1,
    sequence: bool = False,
    scheme: str = "ring",
    positions: str = "zigzag",
    build: Callable[..., DataParallel] | None = None,
    host_limit: int | None = None,
) -> DataParallel | Pipeline:
    """The engine of one place in the grid; with a pipeline, the schedule that drives it. build: makes an engine of the
    data axis in place of ZeRO's stage. host_limit: of hosts that a token may go to."""
    mesh = Mesh(comm, layout)
    tensor, pipe, context, across = (mesh.along(axis) for axis in ("tensor", "pipeline", "context", "host"))
    shard = mesh.along("shard", "context")  # the ranks that divide model states
    data = mesh.along("host", "shard")  # the ranks that share the sequences
    batch = mesh.along("host", "shard", "context")  # ... and the batch's tokens
    cut = ContextGroup(context, settings.precision.stored)
    norm_over, span = {}, None

    if layout.cp > 1:  # attention finds the keys of other ranks
        units = context_parallel.split(units, cut, scheme)
        span = Span(0, layout.cp, context.rank, positions)
    experts, copies = mesh.experts()
    routes = ExpertGroup(experts, batch, settings.precision.stored, layout.ep_hosts, host_limit)
    units = give_experts(units, routes)  # of a mixture, if there is one
    if layout.tp > 1:  # a unit becomes this rank's part of it
        units = tensor_parallel.split(units, tensor_parallel.TensorGroup(tensor, settings.precision.stored, sequence))
        norm_over["tensor norm"] = tensor
    if layout.pp > 1:  # this rank has the units of its stage
        schedule = SCHEDULES[layout.schedule]
        at = schedule.places(layout.pp, settings.accumulate, layout.chunks, contiguous=layout.contiguous)[pipe.rank]
        settings = replace(settings, accumulate=settings.accumulate // at.copies)  # copies of a stage take turns
        stage = stage_of(units, pipe, layout.parts, at, pieces=layout.tp if sequence else 1)
        units = stage.units
        norm_over["pipeline norm"] = pipe
    if layout.hosts > 1:  # each host has a copy of these units
        across_hosts(units, shard, across)
    share_experts(units, copies)

    parts = mesh.along("shard", "pipeline", "context") if layout.ep > 1 else pipe  # ranks that hold other parameters
    stages = parts if parts.size > 1 else None
    axes = Axes(norm_over, others=stages, rows=data, span=span, counts_loss=tensor.rank == 0)
    engine = (build or LADDER[zero])(units, settings, shard, axes)
    cut.pool = engine.device
    return Pipeline(engine, stage, layout.schedule) if layout.pp > 1 else engine


if __name__ == "__main__":
    contents.run("parallel3d")  # its options, and what the papers promise: programs/parallel3d.py
