"""Vector clocks for ranges of keys: whose updates have reached which keys (Li et al., OSDI 2014, section 4.1).

Clocks for n keys and m workers would be n·m numbers. But workers push ranges, and all keys of a range have
the same clock, so one vector of m numbers is kept for each range. When a pushed range has new borders, the ranges
that they cut are split. A push into the middle of a range cuts it twice: into 3 pieces, never more. After pushes
of k different ranges there are at most 2k + 1 ranges, so O(m·k) numbers, for any number of keys.
"""

from bisect import bisect_right

import numpy as np

Array = np.ndarray


class RangeClocks:
    """For each key from `lo` to `hi`-1, how many updates of each of `workers` workers it has received."""

    def __init__(self, lo: int, hi: int, workers: int) -> None:
        self.borders = [lo, hi]  # range i: borders[i] to borders[i+1]
        self.vectors = [np.zeros(workers, np.int64)]

    def set(self, lo: int, hi: int, worker: int, clock: int) -> None:
        """Note that keys lo to hi-1 have received `clock` updates from `worker`. hi > lo."""
        self._cut(lo)
        self._cut(hi)
        for i in range(self.borders.index(lo), self.borders.index(hi)):
            self.vectors[i][worker] = clock

    def read(self, lo: int, hi: int) -> Array:
        """For each worker, how many of its updates every key from lo to hi-1 has received."""
        first, last = bisect_right(self.borders, lo) - 1, bisect_right(self.borders, hi - 1)
        return np.min(self.vectors[first:last], axis=0)

    @property
    def numbers(self) -> int:
        """The number of stored numbers."""
        return sum(vector.size for vector in self.vectors)

    def _cut(self, key: int) -> None:
        """Make `key` a border."""
        i = bisect_right(self.borders, key) - 1
        if self.borders[i] != key:
            self.borders.insert(i + 1, key)
            self.vectors.insert(i + 1, self.vectors[i].copy())
