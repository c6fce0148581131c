"""Rows that are as fast as each other: which comes first, and that one is enough.

The model of time is not exact to a thousandth, so times that differ by less are a tie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minidist.plan.search import Row

SAME = 1e-3  # of a step's time


def rank(row: Row) -> tuple[float, float, int, float]:
    """The fastest first. Of those that take equally long: the one that sends for less time, because what a model hides,
    a cluster may not; then the lower stage of ZeRO, and the one that holds less."""
    return float(f"{row.seconds.step:.9g}"), float(f"{row.links:.9g}"), row.choice.zero, row.held.total


def settle_ties(rows: Sequence[Row]) -> list[Row]:
    """Rows in that order, where times that differ by less than SAME are equal."""
    groups = ties(sorted(rows, key=rank))
    return [row for group in groups for row in sorted(group, key=lambda row: rank(row)[1:])]


def merge_ties(rows: Sequence[Row]) -> list[Row]:
    """Of rows that tie and arrange ranks alike, the first."""
    found: list[Row] = []
    for group in ties(rows):
        first: dict[tuple[Any, ...], Row] = {}
        for row in group:
            at = row.choice
            first.setdefault((at.dp, at.tp, at.cp, at.pp, at.ep, at.schedule), row)
        found += first.values()
    return found


def ties(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Groups of rows that follow each other, none slower than the fastest of its group by more than a thousandth."""
    group: list[Row] = []
    for row in rows:
        if group and row.seconds.step > (1 + SAME) * group[0].seconds.step:
            yield group
            group = []
        group.append(row)
    if group:
        yield group
