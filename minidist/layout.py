"""Who works on what: N ranks on a grid of axes. Ranks, claims and checkpoints ask here, and nobody counts by hand.

    data      dp   each rank has its share of the sequences: of these ranks `shard` divide model states among them, and
                   each of the dp / shard `hosts` has a copy
    pipeline  pp   ... the units of a stage
    context   cp   ... its share of the positions
    tensor    tp   ... its part of every layer

Megatron lays them out with tensor parallelism innermost, because it sends most and neighbours are closest, then the
pipeline, then data: rank = (data · pp + stage) · tp + part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minidist import UsageError


class Place(NamedTuple):
    """A rank's on each axis."""

    host: int
    shard: int
    stage: int
    context: int
    part: int

    def data(self, layout: "Layout") -> int:
        """Which share of the sequences."""
        return self.host * layout.shard + self.shard


@dataclass(frozen=True)
class Layout:
    """The axes' sizes, and what a pipeline makes of its own."""

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    hosts: int = 1  # copies of the model states among the dp ranks
    schedule: str = "1f1b"
    micro_batches: int = 1  # in a step
    chunks: int = 1  # of each stage
    servers: int = 0  # ranks that hold what the others train with, and do not train themselves
    replicas: tuple[int, ...] = ()  # PipeDream: ranks of each stage, if they are not one each
    parts: Sequence[range] = ()  # which units each chunk has: chunk c of stage s those of parts[c·pp + s]

    AXES = ("hosts", "shard", "pipeline", "context", "tensor")  # the innermost last

    @property
    def shard(self) -> int:
        """G: data-parallel ranks that divide model states among them."""
        return self.dp // self.hosts

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.hosts, self.shard, self.pp, self.cp, self.tp

    @property
    def ranks(self) -> int:
        return (sum(self.replicas) or math.prod(self.sizes)) + self.servers

    def place(self, rank: int) -> Place:
        found = []
        for size in reversed(self.sizes):
            rank, here = divmod(rank, size)
            found.append(here)
        return Place(*reversed(found))

    def group(self, rank: int, *axes: str) -> int:
        """The number of the ranks that share this one's place on all other axes."""
        axes = (*axes, "hosts", "shard") if "data" in axes else axes
        number = 0
        for axis, size, here in zip(self.AXES, self.sizes, self.place(rank), strict=True):
            if axis not in axes:
                number = number * size + here
        return number

    def groups(self, *axes: str) -> list[list[int]]:
        """All ranks, by group, each in order of rank."""
        found: dict[int, list[int]] = {}
        for rank in range(self.ranks):
            found.setdefault(self.group(rank, *axes), []).append(rank)
        return [found[number] for number in sorted(found)]


class Mesh:
    """A layout's communicators, on one rank."""

    def __init__(self, comm: Any, layout: Layout) -> None:
        if layout.ranks != comm.size:
            axes = " x ".join(f"{axis} {n}" for axis, n in zip(layout.AXES, layout.sizes, strict=True) if n > 1)
            raise UsageError(f"{axes} is not {comm.size} ranks")
        self.comm, self.layout = comm, layout

    def along(self, *axes: str) -> Any:
        """The ranks that share this one's place on all other axes, in order of rank. All ranks must ask."""
        return self.comm.split(self.layout.group(self.comm.rank, *axes))
