"""What all ranks of a parameter server know from the start: workers, servers, and their keys.

A range of keys is the part of one unit of the model (embedding, block 1, …) that one server holds. All ranges of a
server together are its shard.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, flats_of
from minidist.nn.tensor import Array
from minidist.ps.consistent_hash import Segment

MOST_VIRTUAL = 1000  # virtual servers in total: each costs every worker some messages in every iteration


@dataclass(frozen=True)
class Range:
    """Keys lo to hi-1."""

    lo: int
    hi: int
    shard: int  # the number of the server that holds them
    decayed: int  # weight decay applies to the first `decayed` of them

    @property
    def keys(self) -> slice:
        return slice(self.lo, self.hi)


@dataclass(frozen=True)
class RankPlan:
    """Which rank does what."""

    workers: list[int]  # the rank of each worker
    servers: list[int]  # the rank of the server of each shard
    segments: list[Segment]  # of all keys: the shard that they belong to
    ranges: list[Range]
    staleness: float  # 0 for bsp, infinite for async
    aggregate: bool  # bsp: sum the workers' gradients, then update once
    first_step: int  # with --load: training steps, and updates, that the weights have had
    first_update: int
    options: argparse.Namespace
    vocabulary: int  # of the text

    @property
    def name(self) -> str:
        """The consistency, as tables call it."""
        return "bsp" if self.aggregate else "async" if math.isinf(self.staleness) else f"ssp {self.staleness:g}"

    @property
    def size(self) -> int:
        """S, the number of keys."""
        return max(each.hi for each in self.ranges)

    @property
    def iterations(self) -> int:
        """Pulls and pushes of each worker."""
        return -(-(self.options.steps - self.first_step) // self.options.local_steps)

    def of(self, shard: int) -> list[int]:
        """The numbers of a shard's ranges."""
        return [i for i, each in enumerate(self.ranges) if each.shard == shard]

    def keys_of_range(self, each: Range) -> Array | None:
        """The keys that go with the values of a range; None: none, both sides know them."""
        return None if self.options.keys == "none" else np.arange(each.lo, each.hi)

    def chain(self, shard: int, closed: set[int]) -> list[int]:
        """The ranks that hold a shard and have not stopped: the first serves it, the others keep copies."""
        k = len(self.servers)
        holders = [self.servers[(shard + i) % k] for i in range(self.options.replicas + 1)]
        return [rank for rank in holders if rank not in closed]


def divided(units: list[Unit], k: int) -> list[Unit]:
    """The units; their Flats are padded so that k servers can share them evenly."""
    for flat in flats_of(units):
        flat.shards = k
    return units


def cut(flats: Sequence[Flat], held: Sequence[Segment]) -> list[Range]:
    """Cut the keys into ranges, at the borders of units and of servers' segments. In order of keys."""
    ranges, offset = [], 0
    for flat in flats:
        for first, last, shard in held:
            lo, hi = max(offset, first), min(offset + flat.padded, last)
            if lo < hi:
                ranges.append(Range(lo, hi, shard, decayed=min(max(offset + flat.decayed - lo, 0), hi - lo)))
        offset += flat.padded
    return ranges
