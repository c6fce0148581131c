"""3D parallelism: data, pipeline and tensor parallelism at once, each along an axis of its own.

    mpirun -n 8 python -m minidist.parallel3d --dp 2 --pp 2 --tp 2 --zero 1
    mpirun -n 8 python -m minidist.parallel3d --dp 8 --zero 3 --ranks-per-host 4

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

from minidist import contents
from minidist.data_parallel import Axes, DataParallel
from minidist.engine import Settings
from minidist.layout import Layout, Mesh
from minidist.mpi.comm import Comm
from minidist.nn.layers import Unit
from minidist.pipeline import Pipeline
from minidist.pp.schedules import places
from minidist.pp.stage import stage_of
from minidist.tensor_parallel import Group, split
from minidist.zero3 import LADDER, across_hosts


def grid(
    units: list[Unit], settings: Settings, comm: Comm, layout: Layout, zero: int = 1, sequence: bool = False
) -> DataParallel | Pipeline:
    """The engine of one place in the grid; in a pipeline what drives it."""
    mesh = Mesh(comm, layout)
    tensor, pipe, shard, across = (mesh.along(axis) for axis in ("tensor", "pipeline", "shard", "host"))
    data = mesh.along("host", "shard")  # who shares out the batch
    norm_over = {}

    if layout.tp > 1:  # a unit becomes this rank's part of it
        units = split(units, Group(tensor, settings.precision.stored, sequence))
        norm_over["tensor norm"] = tensor
    if layout.pp > 1:  # of the units this rank has those of its stage
        at = places(layout.pp, settings.accumulate, layout.chunks)[pipe.rank]
        stage = stage_of(units, pipe, layout.parts, at, pieces=layout.tp if sequence else 1)
        units = stage.units
        norm_over["pipeline norm"] = pipe
    if layout.hosts > 1:  # each host has a copy of them
        across_hosts(units, shard, across)

    axes = Axes(norm_over, stages=pipe if layout.pp > 1 else None, rows=data, speaks=tensor.rank == 0)
    engine = LADDER[zero](units, settings, shard, axes)
    return Pipeline(engine, stage, layout.schedule) if layout.pp > 1 else engine


if __name__ == "__main__":
    contents.run("parallel3d")  # its options, and what the papers promise: programs/parallel3d.py
