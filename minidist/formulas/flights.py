"""The micro-batches that are in flight on a stage, over its schedule's own instructions.

A stage may have several chunks. Then the micro-batches in flight are not alike, and what they hold follows from the
order of the stage's work.
"""

from collections import Counter
from functools import cache
from typing import NamedTuple

from minidist.layout import Layout
from minidist.papers import pipelines
from minidist.pp.instructions import Backward, Both, Forward, Instructions, Weight
from minidist.pp.schedules import SCHEDULES


class Flight(NamedTuple):
    """The micro-batches in flight on a stage when a backward begins, or, if W comes later than B, when a forward
    ends. Chunks that are alike count together."""

    counts: tuple[int, ...]  # micro-batches before B: in each kind of chunk, the first chunk's kind first
    lingering: int  # those that have left the last chunk, but not yet all others: their targets are still there
    at_work: int  # the kind of the chunk that is at work
    back: bool = True
    postponed: tuple[int, ...] = ()  # like counts: micro-batches that wait for W alone

    @property
    def held(self) -> tuple[int, ...]:
        return *self.counts, self.lingering, *self.postponed

    def exceeds(self, other: "Flight") -> bool:
        """Whether it holds at least as much of each kind as the other moment, and more of one."""
        alike = (self.at_work, self.back) == (other.at_work, other.back)
        return alike and self != other and all(more >= less for more, less in zip(self.held, other.held, strict=True))


KEEPS_ALL = ("gpipe", "breadth-first")  # others hold no more after three groups of micro-batches and a smaller one


def one_by_one(instructions: Instructions) -> Instructions:
    """The instructions as ranks run them: of a forward and a backward that overlap, the forward comes first."""
    for work in instructions:
        if isinstance(work, Both):
            yield from (work.forward, work.backward, Weight(work.backward.micro_batch, work.backward.chunk))
        else:
            yield work


def flights(at: Layout, stage: int, kinds: tuple[int, ...]) -> list[Flight]:
    """The fullest moments of a stage, from 1. kinds: of its chunks. With one chunk, and W right after B, the papers say
    how many micro-batches are in flight, whatever the instructions are."""
    m, group = at.micro_batches, at.contiguous or at.pp
    if len(kinds) == 1 and not SCHEDULES[at.schedule].splits:
        return [Flight((pipelines.in_flight(at.schedule, at.pp, m, stage),), 0, 0)]
    enough = m if at.schedule in KEEPS_ALL else min(m, 3 * group + m % group)  # to see all moments
    return in_flight(at.schedule, at.pp, enough, stage, at.chunks, group, kinds)


def usual_kinds(chunks: int) -> tuple[int, ...]:
    """The kind of each chunk, if those between the first and the last are alike."""
    return tuple(0 if chunk == 0 else min(chunks, 3) - 1 if chunk == chunks - 1 else 1 for chunk in range(chunks))


@cache
def in_flight(
    schedule: str, p: int, m: int, stage: int, v: int = 1, group: int = 0, kinds: tuple[int, ...] = ()
) -> list[Flight]:
    """The fullest moments of a stage (from 1), over the schedule's own instructions: those that no other exceeds."""
    kind, found = SCHEDULES[schedule], set[Flight]()
    at = kind.places(p, m, v, contiguous=group)[stage - 1]
    kinds = kinds or usual_kinds(at.chunks)
    counts, under_way = [0] * (max(kinds) + 1), Counter[int]()  # chunks that a micro-batch is still to leave
    postponed = [0] * len(counts) * kind.splits
    left = set[int]()  # micro-batches that have left the last chunk

    for work in one_by_one(kind.instructions(at)):
        if isinstance(work, Forward):
            counts[kinds[work.chunk]] += 1
            under_way[work.micro_batch] += 1
            if kind.splits:  # before the next B there may be a W
                found.add(Flight(tuple(counts), len(left), kinds[work.chunk], False, tuple(postponed)))
        elif isinstance(work, Backward):
            found.add(Flight(tuple(counts), len(left), kinds[work.chunk], True, tuple(postponed)))
            if kind.splits:
                counts[kinds[work.chunk]] -= 1
                postponed[kinds[work.chunk]] += 1
        elif isinstance(work, Weight):
            (postponed if kind.splits else counts)[kinds[work.chunk]] -= 1
            under_way[work.micro_batch] -= 1
            left = {k for k in left | {work.micro_batch} if under_way[k]}
    return [one for one in found if not any(other.exceeds(one) for other in found)]
