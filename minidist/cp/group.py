"""The ranks that divide the positions of each sequence among them, and the memory for what they send each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from minidist import former_names, ring
from minidist.cp.watch import Unwatched
from minidist.mpi.comm import Comm
from minidist.nn.attend import ProbabilityDropout
from minidist.nn.tensor import Array, ArrayPool, NullPool


@dataclass(eq=False)
class ContextGroup:
    """N ranks. Keys and values travel as they are stored: in mixed precision, two bytes for each element."""

    comm: Comm
    wire: type[np.generic]
    pool: ArrayPool = field(default_factory=NullPool)  # counts what is sent and received
    watch: Unwatched = field(default_factory=Unwatched)

    @property
    def rank(self) -> int:
        return self.comm.rank

    def head_shares(self, kv_heads: int) -> list[range]:
        """With Ulysses, the key/value heads that each rank has in between, and with them the query heads they serve."""
        return [range(kv_heads)[ring.chunk(kv_heads, self.comm.size, rank)] for rank in range(self.comm.size)]

    def pack(self, array: Array) -> Array:
        """A contiguous copy, to be sent."""
        return self.pool.hold("messages", np.array(array, self.wire, order="C"))

    def room(self, shape: Sequence[int]) -> Array:
        """Room for a message."""
        return self.pool.hold("messages", np.empty(shape, self.wire))

    def rooms(self, k: Array, sizes: Sequence[int]) -> "BlockRooms":
        """Two rooms for keys and values of ranks that have these numbers of positions. k (B, Hkv, 1, any, D)."""
        return BlockRooms(self, k.shape[:-2], k.shape[-1], max(sizes))


Masks = Callable[
    ..., ProbabilityDropout | None
]  # of the probabilities of all keys, for some queries and perhaps some heads


def no_mask(queries: Array, kv_heads: range | None = None) -> None:
    """Without dropout."""


class BlockRooms:
    """Two rooms, used in turn: while the block in one of them is used, the next block comes into the other."""

    def __init__(self, group: ContextGroup, before: tuple[int, ...], depth: int, longest: int) -> None:
        self.before, self.depth = (2, *before), depth
        self.flat = [group.room((2 * int(np.prod(before)) * longest * depth,)) for _ in range(2)]

    def take(self, size: int) -> Array:
        """The room that has waited longer, for a block of keys and values: (2, B, Hkv, 1, size, D)."""
        self.flat.reverse()
        shape = (*self.before, size, self.depth)
        return self.flat[0][: int(np.prod(shape))].reshape(shape)


__getattr__ = former_names(__name__)
