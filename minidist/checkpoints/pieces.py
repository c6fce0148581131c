"""Which elements of a parameter a rank holds, and where they lie in the whole: so that any layout can read any other's.

There are two cuts, one after the other. Tensor parallelism cuts an axis: a rank's part has some spans of it. ZeRO cuts
the Flat in which the part lies, wherever a shard happens to end: a rank's piece is some consecutive elements of the
part. Seen from the whole, a piece is a list of runs: elements that are consecutive in the piece and in the whole.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from minidist.nn.flat import Flat
from minidist.nn.tensor import Array

Shape = tuple[int, ...]


class Piece(NamedTuple):
    """Elements `start` to `stop` - 1, in the order of memory, of the part that has these spans of an axis."""

    shape: Shape  # of the whole
    axis: int
    spans: tuple[tuple[int, int], ...]  # (first, last + 1) of the axis; what lies beyond its end is padding
    start: int
    stop: int

    def runs(self) -> Array:
        """(n, 3) integers, in ascending order: where a run begins in the piece, where in the whole, and its length."""
        before, after = math.prod(self.shape[: self.axis]), math.prod(self.shape[self.axis + 1 :])
        places, spans = self.shape[self.axis], np.array(self.spans)  # (s, 2)
        sizes = spans[:, 1] - spans[:, 0]
        rows = np.arange(before)[:, None]
        in_part = (rows * sizes.sum() + np.cumsum(sizes) - sizes) * after  # (before, s)
        in_whole = (rows * places + spans[:, 0]) * after
        length = np.broadcast_to((np.minimum(spans[:, 1], places) - spans[:, 0]) * after, in_part.shape)
        begin, end = np.maximum(in_part, self.start), np.minimum(in_part + length, self.stop)
        found = np.stack([begin - self.start, in_whole + begin - in_part, end - begin], axis=-1).reshape(-1, 3)
        return found[found[:, 2] > 0]


def whole_piece(shape: Shape) -> Piece:
    """All of a parameter."""
    return Piece(shape, 0, ((0, shape[0]),), 0, math.prod(shape))


def pieces(flat: Flat, which: slice) -> Iterator[tuple[str, Piece, slice]]:
    """(name, piece, where in the slice) of every parameter that has elements in a slice of the Flat."""
    offset = 0
    for parameter in flat.parameters:
        start, stop = max(which.start, offset), min(which.stop, offset + parameter.size)
        if start < stop:
            piece = Piece(*parameter.spans(), start - offset, stop - offset)
            yield parameter.name, piece, slice(start - which.start, stop - which.start)
        offset += parameter.size


def overlaps(mine: Array, theirs: Array) -> Array:
    """(n, 3): for each run that both lists share, where it begins in my piece, where in theirs, and its length."""
    if not len(mine) or not len(theirs):
        return np.zeros((0, 3), int)
    # The whole is cut at every border of either list; each interval is in one run of a list, or in none.
    borders = np.unique([edge for runs in (mine, theirs) for edge in (*runs[:, 1], *(runs[:, 1] + runs[:, 2]))])
    begin, length = borders[:-1], np.diff(borders)
    inside, places = np.full(len(begin), True), []
    for runs in (mine, theirs):
        run = np.maximum(np.searchsorted(runs[:, 1], begin, side="right") - 1, 0)
        beyond = begin - runs[run, 1]
        inside &= (beyond >= 0) & (beyond < runs[run, 2])
        places.append(runs[run, 0] + beyond)
    return np.stack([*places, length], axis=-1)[inside]
