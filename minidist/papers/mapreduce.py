"""MapReduce: Dean & Ghemawat, OSDI 2004."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from minidist.papers.figure import Figure


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


def _measured(section: str, cell: str, value: float, unit: str) -> Figure:
    """What the paper measured, or chose, on its own cluster."""
    return Figure(f"MapReduce {section}", cell, f"{value:g}", unit, "measured")


def _longer(section: str, cell: str, printed: str, seconds: float) -> Figure:
    """How much longer the sort took than the undisturbed one."""
    more = 100 * (seconds / SORT.seconds - 1)
    return Figure(f"MapReduce {section}", cell, printed, "%", "of all seconds", more)


FIGURES = [
    _measured("§5.3", "sort, M", SORT.maps, "tasks"),
    _measured("§5.3", "sort, R", SORT.reduces, "tasks"),
    _measured("§5.3", "sort, maps done", SORT.maps_done, "s"),
    _measured("§5.3", "sort", SORT.seconds, "s"),
    _measured("§5.4", "sort without backup tasks", SORT.without_backups, "s"),
    _measured("§5.5", "sort, workers", SORT.workers, "workers"),
    _measured("§5.5", "sort, workers killed", SORT.killed, "workers"),
    _measured("§5.5", "sort with workers killed", SORT.seconds_with_killed, "s"),
    _longer("§5.4", "without backup tasks, longer", "44", SORT.without_backups),
    _longer("§5.5", "with workers killed, longer", "5", SORT.seconds_with_killed),
]
