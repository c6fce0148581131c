"""Rows that are as fast as each other: which comes first, and that one is enough.

The model of time is not exact to a thousandth, so times that differ by less are a tie.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from minidist.plan.choice import Choice
from minidist.plan.memory import Held
from minidist.plan.time import Seconds

SAME = 1e-3  # of a step's time


class Row(NamedTuple):
    """A choice, with its memory and its speed."""

    choice: Choice
    held: Held  # of the fullest rank
    seconds: Seconds
    tokens: float  # a second
    mfu: float  # model FLOPs utilization
    links: float  # seconds of messages in a step, also of those that are hidden
    sent: int  # bytes that the busiest rank sends in a step, along all axes


def is_faster(row: Row, other: Row) -> bool:
    """By more than what counts as equal."""
    return row.seconds.step * (1 + SAME) < other.seconds.step


def settle_ties(rows: Sequence[Row]) -> list[Row]:
    """The fastest first. Of those that tie: the one whose busiest rank sends less, because what a model hides, a
    cluster may not; then the lower stage of ZeRO, and the one that holds less."""
    settled: list[Row] = []
    for group in ties(sorted(rows, key=lambda row: row.seconds.step)):
        if len(group) > 1:
            group.sort(key=lambda row: (row.sent, row.choice.zero, row.held.total))
        settled += group
    return settled


def merge_ties(rows: Sequence[Row]) -> list[Row]:
    """Of rows that tie and arrange ranks alike, the first."""
    found: list[Row] = []
    for group in ties(rows):
        first: dict[tuple[Any, ...], Row] = {}
        for row in group:
            first.setdefault((row.choice.axes, row.choice.schedule), row)
        found += first.values()
    return found


def ties(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Groups of rows that follow each other, none slower than the fastest of its group by more than a thousandth."""
    group: list[Row] = []
    for row in rows:
        if group and is_faster(group[0], row):
            yield group
            group = []
        group.append(row)
    if group:
        yield group
