"""MapReduce: Dean & Ghemawat, OSDI 2004."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


def pair_bytes(keys: Sequence[str], values: Sequence[str]) -> int:
    """Bytes of intermediate pairs: |k| + |v| in UTF-8, a tab, a line feed, and one for each character escaped.

    Without a combiner, reducers fetch this for all pairs that map emits; with one, for a pair for each distinct key of
    each map task (section 4.3).
    """
    text = "".join(itertools.chain(keys, values))
    return len(text.encode()) + len(keys) + len(values) + sum(map(text.count, "\\\t\n"))


def decisions(m: int, r: int, again: int = 0, backups: int = 0) -> int:
    """The master's scheduling decisions: O(M + R) (section 3.5), one for each task, once more for each task that must
    start again (3.3, 4.6), and one for each backup (3.6)."""
    return m + r + again + backups


@dataclass(frozen=True)
class SortRun:
    """The sort of 10^10 records (section 5.3), as the paper measured it: the figures are of its cluster, and no formula
    gives them."""

    workers: int = 1746  # section 5.5
    maps: int = 15_000  # M
    reduces: int = 4_000  # R
    maps_done: float = 200.0  # seconds: "all map tasks finish before 200 seconds"
    seconds: float = 891.0
    without_backups: float = 1283.0  # section 5.4
    killed: int = 200  # workers, "several minutes into the computation" (section 5.5); they were started again at once
    seconds_with_killed: float = 933.0


SORT = SortRun()
