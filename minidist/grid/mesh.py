"""Ranks as a grid with named axes, so that each kind of parallelism has a communicator of its own.

Megatron lays them out with tensor parallelism innermost, because it sends most and neighbours are closest, then the
pipeline, then data: rank = (data · p + stage) · t + part.
"""

import math

from minidist import UsageError
from minidist.mpi.comm import Comm


class Mesh:
    """N ranks on axes whose sizes multiply to N; the last one named is the innermost.

    A rank's place on each axis is in `place`. `along` gives the ranks that differ from it on some axes alone.
    """

    def __init__(self, comm: Comm, **sizes: int) -> None:
        if math.prod(sizes.values()) != comm.size:
            raise UsageError(f"{' x '.join(f'{axis} {n}' for axis, n in sizes.items())} is not {comm.size} ranks")
        self.comm, self.sizes = comm, sizes
        self.place = places(comm.rank, sizes)

    def along(self, *axes: str) -> Comm:
        """The ranks that share this one's place on all other axes, in order of rank. All ranks must ask."""
        group = 0  # numbers the places on the other axes
        for axis, size in self.sizes.items():
            if axis not in axes:
                group = group * size + self.place[axis]
        return self.comm.split(group)


def places(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    """A rank's place on each axis; the innermost axis is the last."""
    found = {}
    for axis, size in reversed(sizes.items()):
        rank, found[axis] = divmod(rank, size)
    return {axis: found[axis] for axis in sizes}
