"""Which rank works on what: N ranks on a grid of axes. Ranks, checkpoints and planning ask here; no other module
computes with rank numbers.

    data      dp   each rank has its share of the sequences: `shard` of these ranks divide the model states among them,
                   and each of the dp / shard hosts has a copy
    pipeline  pp   each rank has the units of a stage
    context   cp   each rank has its share of the positions
    tensor    tp   each rank has its part of every layer
    expert    ep   of the shard · cp ranks that divide model states: each has its share of the experts, and ranks with
                   the same experts divide these experts' states

Megatron puts tensor parallelism innermost, because it sends most and neighbors are closest; then comes the pipeline,
then data: rank = (data · pp + stage) · tp + part (Narayanan et al., SC 2021, section 3).
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
    """The sizes of the axes, and how the pipeline axis divides the units."""

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    hosts: int = 1  # copies of the model states among the dp ranks
    servers: int = 0  # ranks that hold parameters for the others, and do not train themselves
    schedule: str = "1f1b"
    micro_batches: int = 1  # in a step
    chunks: int = 1  # of each stage
    contiguous: int = 0  # Llama 3: micro-batches that go through a chunk before the next chunk's turn; 0: pp
    replicas: tuple[int, ...] = ()  # PipeDream: the number of ranks of each stage, if not one each
    parts: Sequence[range] = ()  # the units of each chunk: chunk c of stage s has parts[c·pp + s]
    ep: int = 1  # of the shard · cp ranks, those that divide the experts among them
    ep_hosts: int = 1  # the hosts of these ranks, if a token may go to a few hosts only; the same number on each

    @property
    def shard(self) -> int:
        """G: the number of data-parallel ranks that divide the model states among them."""
        return self.dp // self.hosts

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis, the outermost first."""
        return {
            "host": self.hosts,
            "shard": self.shard,
            "pipeline": self.pp,
            "context": self.cp,
            "tensor": self.tp,
        }

    @property
    def ranks(self) -> int:
        """N, servers included."""
        return (sum(self.replicas) or math.prod(self.sizes.values())) + self.servers

    def place(self, rank: int) -> Place:
        """Where a rank stands on each axis."""
        found = {}
        for axis, size in reversed(self.sizes.items()):
            rank, found[axis] = divmod(rank, size)
        return Place(**found)

    def group(self, rank: int, *axes: str) -> int:
        """The first of the ranks that share this rank's place on all axes except these."""
        first, place = 0, self.place(rank)._replace(**dict.fromkeys(axes, 0))
        for axis, size in self.sizes.items():
            first = first * size + getattr(place, axis)
        return first

    def groups(self, *axes: str) -> list[list[int]]:
        """All these groups, each in order of rank."""
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
        """The ranks that share this rank's place on all axes except these, in order of rank. All ranks must call it."""
        return self.comm.split(self.layout.group(self.comm.rank, *axes))

    def experts(self) -> tuple[Any, Any]:
        """Two groups of the ranks that divide model states: those that divide the experts among them, and those that
        hold the same experts. The former are next to each other. All ranks must call this."""
        data = self.along("shard", "context")
        return data.split(data.rank // self.layout.ep), data.split(data.rank % self.layout.ep)
