"""The ranks that share every layer: how they exchange activations, and what a rank holds of a cut parameter
(Shoeybi et al. 2019, section 3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist import collectives, former_names, ring
from minidist.mpi.comm import Comm
from minidist.nn.tensor import Array, Parameter


@dataclass(frozen=True)
class TensorGroup:
    """The t ranks that share every layer. A shard is a t-th of the positions of x (B, T, C)."""

    comm: Comm
    wire: type[np.generic]  # activations travel as they are stored
    sequence: bool = False  # outside of the cut layers a rank has its shard of x, instead of a copy of x
    where: str = "layers"  # the name under which traffic is counted

    @property
    def positions(self) -> tuple[int, int]:
        """(i, n): outside of the cut layers a rank has the i-th of n equal pieces of the positions."""
        return (self.comm.rank, self.comm.size) if self.sequence else (0, 1)

    def all_reduce(self, x: Array, when: str) -> Array:
        """The sum over the ranks."""
        with self.comm.phase(f"{self.where}: all-reduce {when}"):
            total = collectives.all_reduce(self.comm, x.astype(self.wire, copy=False).reshape(-1))
        return total.reshape(x.shape).astype(x.dtype, copy=False)

    def reduce_scatter(self, x: Array, when: str) -> Array:
        """This rank's shard of the sum over the ranks: (B, T, C) -> (B, T/t, C)."""
        with self.comm.phase(f"{self.where}: reduce-scatter {when}"):
            shard = ring.reduce_scatter(self.comm, self.to_wire(x))
        return self.from_wire(shard, x)

    def all_gather(self, x: Array, when: str) -> Array:
        """The shards of all ranks, each in its place: (B, T/t, C) -> (B, T, C)."""
        with self.comm.phase(f"{self.where}: all-gather {when}"):
            whole = ring.all_gather(self.comm, self.to_wire(x), x.size * self.comm.size)
        return self.from_wire(whole, x)

    def to_wire(self, x: Array) -> Array:
        """(B, T, C) as (T·B·C,): with the positions first, a shard is one chunk."""
        return x.astype(self.wire, copy=False).transpose(1, 0, 2).reshape(-1)

    def from_wire(self, flat: Array, like: Array) -> Array:
        """The way back from `to_wire`, for any T."""
        return np.ascontiguousarray(flat.reshape(-1, len(like), like.shape[-1]).transpose(1, 0, 2), like.dtype)

    def slice(self, parameter: Parameter, axis: int, *sections: int) -> Parameter:
        """This rank's part of a parameter: an equal share of each section of one axis."""
        return Sliced(parameter, axis, sections, self.comm)


def cut_places(sections: Sequence[int], ranks: int) -> list[Array]:
    """Which places of an axis each rank holds, when sections of these sizes lie on it one after another: an equal share
    of every section. [Q | K | V] cut by heads are three sections, [gate | up] of SwiGLU two."""
    starts = np.cumsum([0, *sections[:-1]])
    shares = [np.array_split(start + np.arange(size), ranks) for start, size in zip(starts, sections, strict=True)]
    return [np.concatenate(share) for share in zip(*shares, strict=True)]


class Sliced(Parameter):
    """This rank's part of a parameter along one axis. The whole is drawn, and this part of it taken.

    sections: the sizes of what lies on the axis, one after another. A rank has an equal share of each. They may go
    beyond the whole's end (a padded vocabulary); the padding starts at zero, and is left out when parts are joined.
    """

    group = "cut"

    def __init__(self, declared: Parameter, axis: int, sections: Sequence[int], comm: Comm) -> None:
        self.declared, self.axis, self.sections, self.comm = declared, axis, sections, comm
        self.group = declared.group or self.group
        shape = list(declared.shape)
        shape[axis] = len(self.places[comm.rank])
        super().__init__(declared.name, tuple(shape), declared.std, declared.fill)

    @property
    def places(self) -> list[Array]:
        """The places of the axis that each rank holds. Computed on each use, because it is as large as a bias."""
        return cut_places(self.sections, self.comm.size)

    def initial(self, seed: int) -> Array:
        return self.part(self.declared.initial(seed))

    def part(self, whole: Array) -> Array:
        padding = [(0, 0)] * whole.ndim
        padding[self.axis] = (0, sum(self.sections) - whole.shape[self.axis])
        return np.pad(whole, padding).take(self.places[self.comm.rank], self.axis)

    def whole(self, part: Array) -> Array:
        return self.join(self.comm.all_gather_object(part))

    def spans(self) -> tuple[tuple[int, ...], int, tuple[tuple[int, int], ...]]:
        mine = self.places[self.comm.rank]
        runs = np.split(mine, np.flatnonzero(np.diff(mine) != 1) + 1)
        return self.declared.shape, self.axis, tuple((int(run[0]), int(run[-1]) + 1) for run in runs)

    def join(self, parts: Sequence[Array]) -> Array:
        """The whole, from every rank's part in order of rank."""
        order = np.argsort(np.concatenate(self.places))[: self.declared.shape[self.axis]]
        return np.concatenate(parts, self.axis).take(order, self.axis)


__getattr__ = former_names(__name__)
