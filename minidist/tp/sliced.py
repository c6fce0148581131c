"""A parameter of which a rank holds a part: what tensor parallelism cuts (Shoeybi et al. 2019, section 3)."""

from collections.abc import Sequence

import numpy as np

from minidist.mpi.comm import Comm
from minidist.nn.tensor import Array, Parameter


def cut_places(sections: Sequence[int], ranks: int) -> list[Array]:
    """Which places of an axis each rank holds, when sections of these sizes lie on it one after another: an equal share
    of every section. [Q | K | V] cut by heads are three sections, [gate | up] of SwiGLU two."""
    starts = np.cumsum([0, *sections[:-1]])
    shares = [np.array_split(start + np.arange(size), ranks) for start, size in zip(starts, sections, strict=True)]
    return [np.concatenate(share) for share in zip(*shares, strict=True)]


class Sliced(Parameter):
    """This rank's part of a parameter along one axis. It starts as that part of the whole would, drawn as a whole.

    sections: what lies on the axis, one after another, of each of which a rank has an equal share. They may go beyond
    the whole's end (a padded vocabulary); what is there starts at zero, and is left out when the parts are joined.
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
