"""The ranks that share every layer, and how they exchange activations, which is counted by where and when."""

from dataclasses import dataclass

import numpy as np

from minidist import ring
from minidist.mpi.comm import Comm
from minidist.nn.tensor import Array, Parameter
from minidist.tp.sliced import Sliced


@dataclass(frozen=True)
class Group:
    """The t ranks that share every layer. A shard is a t-th of the positions of x (B, T, C)."""

    comm: Comm
    wire: type[np.generic]  # activations travel as they are stored
    sequence: bool = False  # outside of the cut layers a rank has its shard of x, instead of a copy of x
    where: str = "layers"  # how the traffic is counted

    @property
    def positions(self) -> tuple[int, int]:
        """(i, n): outside of the cut layers a rank has the i-th of n equal pieces of the positions."""
        return (self.comm.rank, self.comm.size) if self.sequence else (0, 1)

    def all_reduce(self, x: Array, when: str) -> Array:
        """The sum over the ranks."""
        with self.comm.phase(f"{self.where}: all-reduce {when}"):
            total = ring.all_reduce(self.comm, x.astype(self.wire, copy=False).reshape(-1))
        return total.reshape(x.shape).astype(x.dtype, copy=False)

    def reduce_scatter(self, x: Array, when: str) -> Array:
        """This rank's shard of the sum over the ranks: (B, T, C) -> (B, T/t, C)."""
        with self.comm.phase(f"{self.where}: reduce-scatter {when}"):
            shard = ring.reduce_scatter(self.comm, self.to_wire(x))
        return self.from_wire(shard, x)

    def all_gather(self, x: Array, when: str) -> Array:
        """Everyone's shard in its place: (B, T/t, C) -> (B, T, C)."""
        with self.comm.phase(f"{self.where}: all-gather {when}"):
            whole = ring.all_gather(self.comm, self.to_wire(x), x.size * self.comm.size)
        return self.from_wire(whole, x)

    def to_wire(self, x: Array) -> Array:
        """(B, T, C) as (T·B·C,): with the positions first, a shard is one chunk."""
        return x.astype(self.wire, copy=False).transpose(1, 0, 2).reshape(-1)

    def from_wire(self, flat: Array, like: Array) -> Array:
        """The way back, for any T."""
        return np.ascontiguousarray(flat.reshape(-1, len(like), like.shape[-1]).transpose(1, 0, 2), like.dtype)

    def slice(self, parameter: Parameter, axis: int, *sections: int) -> Parameter:
        """This rank's part of a parameter: an equal share of each section of one axis."""
        return Sliced(parameter, axis, sections, self.comm)
