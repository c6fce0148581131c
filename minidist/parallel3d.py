"""3D parallelism: data, pipeline and tensor parallelism at once, each along an axis of its own.

    mpirun -n 8 python -m minidist.parallel3d --dp 2 --pp 2 --tp 2 --zero 1
    mpirun -n 8 python -m minidist.parallel3d --dp 8 --zero 3 --shard 4

Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021, section 3
(how the kinds are combined). Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2 (hybrid sharding).

    tensor     innermost     changes what a unit is: a t-th of each layer, with communication inside
    pipeline   in between    changes which units a rank has, and when they run: those of its stage, by a schedule
    data       outermost     changes what happens around a unit: its gradients are summed, its model states divided

None of them asks what the others do: `grid` below lets one act after the other. They meet in what each Flat of
parameters says of itself (`minidist/nn/flat.py`): among whom it is divided, over whom else its gradient is summed, and
who counts it in the norm. Rank (i·p + j)·t + k works on the i-th share of each micro-batch, with the j-th stage of the
model, with the k-th part of every layer in it. Tensor parallelism sends most, so its ranks are next to each other; data
parallelism sends least often, so its ranks are farthest apart.

A stage sends to its counterparts on the next one: the same data, the same part. Gradients of a tied embedding are
summed by the first and the last stage, part by part. A gradient's norm, and so whether it overflowed, goes around
every axis in turn: over the shards, over the parts, over the stages; every parameter is counted once.

With a pipeline, ZeRO-2 has no place where the gradients of m micro-batches could add up, and sums each of them over the
ranks: (m+1)Ψ instead of 2Ψ. ZeRO-3 gathers parameters for each as well: 3mΨ.
"""

import sys
from functools import partial

from minidist import command, train
from minidist.data_parallel import Axes, DataParallel
from minidist.engine import Settings
from minidist.grid import options as grid_options
from minidist.grid.claims import claims, needs, print_closing
from minidist.grid.mesh import Mesh
from minidist.mpi.comm import Comm
from minidist.mpi.run import run
from minidist.nn.layers import Unit
from minidist.pipeline import Pipeline, pipeline_claims, places, stage_of
from minidist.tensor_parallel import Group, split, tensor_claims
from minidist.zero1 import ZeRO1
from minidist.zero2 import ZeRO2
from minidist.zero3 import ZeRO3, across_hosts

LADDER = (DataParallel, ZeRO1, ZeRO2, ZeRO3)


def grid(
    units: list[Unit], settings: Settings, comm: Comm, options: command.Options
) -> tuple[DataParallel, Pipeline | None]:
    """The engine of one place in the grid, and in a pipeline what drives it."""
    hosts = options.dp // options.shard
    mesh = Mesh(comm, hosts=hosts, shard=options.shard, pipeline=options.pp, tensor=options.tp)
    tensor, pipe, shard, across = (mesh.along(axis) for axis in ("tensor", "pipeline", "shard", "hosts"))
    pieces = options.tp if options.sequence_parallel else 1
    norm_over = {}

    if options.tp > 1:  # a unit becomes this rank's part of it
        units = split(units, Group(tensor, settings.precision.stored, options.sequence_parallel))
        norm_over["tensor norm"] = tensor
    if options.pp > 1:  # of the units this rank has those of its stage
        at = places(options.pp, settings.accumulate, options.chunks)[pipe.rank]
        stage = stage_of(units, pipe, options.parts, at, pieces)
        units = stage.units
        norm_over["pipeline norm"] = pipe
    if hosts > 1:  # each host has a copy of them
        across_hosts(units, shard, across)

    axes = Axes(
        norm_over,
        stages=pipe if options.pp > 1 else None,
        rows=mesh.along("hosts", "shard"),
        speaks=tensor.rank == 0,
    )
    engine = LADDER[options.zero](units, settings, shard, axes)
    return engine, Pipeline(engine, stage, options.schedule) if options.pp > 1 else None


# ---- the run ---------------------------------------------------------------------------------------------------------


def main(comm: Comm, job: command.Job) -> int:
    """Train and report; of a pipeline also show what the clocks say."""
    train.say_needs(job, comm, needs)
    engine, pipeline = grid(job.units, job.settings, comm, job.options)
    # What layers keep with dropout; of a pipeline nothing, for a stage runs only in a schedule.
    look = dict if pipeline else partial(tensor_claims.count_with_dropout, job, engine)
    status = train.run_job(job, engine, comm, claims, print_closing, pipeline, look)
    if pipeline:
        dp, pp, tp = job.options.dp, job.options.pp, job.options.tp
        pipelines = [range(i * pp * tp + k, (i + 1) * pp * tp, tp) for i in range(dp) for k in range(tp)]
        pipeline_claims.show_clocks(comm, pipeline.watch.timeline, job.options, pipelines)
    return status


if __name__ == "__main__":
    made = command.parser(__doc__ or "", "parallel3d")  # python -OO drops docstrings
    grid_options.add_options(made)
    run(prepare=lambda comm: grid_options.prepare(made, sys.argv[1:], comm.size), main=main)
