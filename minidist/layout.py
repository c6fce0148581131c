"""Who works on what: N ranks on a grid of axes. Ranks, checkpoints and planning ask here; nothing else does arithmetic
with the numbers of ranks.

    data      dp   each rank has its share of the sequences: of these ranks `shard` divide model states among them, and
                   each of the dp / shard hosts has a copy
    pipeline  pp   ... the units of a stage
    context   cp   ... its share of the positions
    tensor    tp   ... its part of every layer

Megatron lays them out with tensor parallelism innermost, because it sends most and neighbors are closest, then the
pipeline, then data: rank = (data · pp + stage) · tp + part (Narayanan et al., SC 2021, section 3).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minidist import UsageError


class Place(NamedTuple):
    """A rank's number on each axis."""

    host: int
    shard: int
    pipeline: int
    context: int
    tensor: int


@dataclass(frozen=True)
class Layout:
    """The sizes of the axes, and how a pipeline fills its own."""

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    hosts: int = 1  # copies of the model states among the dp ranks
    servers: int = 0  # ranks that hold what the others train with, and do not train themselves
    schedule: str = "1f1b"
    micro_batches: int = 1  # in a step
    chunks: int = 1  # of each stage
    replicas: tuple[int, ...] = ()  # PipeDream: ranks of each stage, if they are not one each
    parts: Sequence[range] = ()  # which units each chunk has: chunk c of stage s those of parts[c·pp + s]

    @property
    def shard(self) -> int:
        """G: data-parallel ranks that divide model states among them."""
        return self.dp // self.hosts

    @property
    def sizes(self) -> dict[str, int]:
        """Of the axes, the outermost first."""
        return {
            "host": self.hosts,
            "shard": self.shard,
            "pipeline": self.pp,
            "context": self.cp,
            "tensor": self.tp,
        }

    @property
    def ranks(self) -> int:
        """N."""
        return (sum(self.replicas) or math.prod(self.sizes.values())) + self.servers

    def place(self, rank: int) -> Place:
        """Where a rank stands on each axis."""
        found = {}
        for axis, size in reversed(self.sizes.items()):
            rank, found[axis] = divmod(rank, size)
        return Place(**found)

    def group(self, rank: int, *axes: str) -> int:
        """The first of the ranks that share this one's place on all axes but these."""
        first, place = 0, self.place(rank)._replace(**dict.fromkeys(axes, 0))
        for axis, size in self.sizes.items():
            first = first * size + getattr(place, axis)
        return first

    def groups(self, *axes: str) -> list[list[int]]:
        """All ranks by such groups, each in order of rank."""
        found: dict[int, list[int]] = {}
        for rank in range(self.ranks):
            found.setdefault(self.group(rank, *axes), []).append(rank)
        return [found[first] for first in sorted(found)]


class Mesh:
    """A layout's communicators, on one rank."""

    def __init__(self, comm: Any, layout: Layout) -> None:
        if layout.ranks != comm.size:
            axes = " x ".join(f"{axis} {n}" for axis, n in layout.sizes.items() if n > 1)
            raise UsageError(f"{axes} is not {comm.size} ranks")
        self.comm, self.layout = comm, layout

    def along(self, *axes: str) -> Any:
        """The ranks that share this one's place on all axes but these, in order of rank. All ranks must ask."""
        return self.comm.split(self.layout.group(self.comm.rank, *axes))
