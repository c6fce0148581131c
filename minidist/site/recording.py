"""A communicator that records what is sent over it, and the steps in which that happens.

A number that is sent says what it is: byte c stands for chunk c, and each bit set in it for a rank in the sum.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from minidist.mpi.comm import Comm

Item = tuple[int, int]  # chunk, and the ranks whose parts are in it, as bits
Array = np.ndarray


def element(chunk: int, rank: int) -> int:
    """A rank's own part of a chunk."""
    return 1 << 8 * chunk + rank


def items(array: Array) -> list[Item]:
    """Decode an array: the chunk that each number stands for, and the ranks whose parts are in it."""
    found = []
    for value in map(int, array.ravel()):
        chunk = (value.bit_length() - 1) // 8
        found.append((chunk, value >> 8 * chunk))
    return found


class RankEvent(NamedTuple):
    """A rank sends, receives, or does both at the same time."""

    dest: int | None
    items: list[Item]
    nbytes: int
    source: int | None


class Recording:
    """A communicator that records what is sent over it."""

    def __init__(self, comm: Comm) -> None:
        self.comm, self.events = comm, list[RankEvent]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def send(self, array: Array, dest: int) -> None:
        self.events.append(RankEvent(dest, items(array), array.nbytes, None))
        self.comm.send(array, dest)

    def recv(self, out: Array, source: int) -> None:
        self.events.append(RankEvent(None, [], 0, source))
        self.comm.recv(out, source)

    def sendrecv(self, array: Array, dest: int, out: Array, source: int) -> None:
        self.events.append(RankEvent(dest, items(array), array.nbytes, source))
        self.comm.sendrecv(array, dest, out, source)

    def isend(self, array: Array, dest: int) -> Any:
        self.events.append(RankEvent(dest, items(array), array.nbytes, None))
        return self.comm.isend(array, dest)

    def irecv(self, out: Array, source: int) -> Any:
        """Receive at the same time as the send that was started just before: one event."""
        self.events[-1] = self.events[-1]._replace(source=source)
        return self.comm.irecv(out, source)


class RecordedMessage(NamedTuple):
    """A message from one rank to another, in a step."""

    step: int
    source: int
    dest: int
    items: list[Item]
    nbytes: int


def messages(events: Sequence[Sequence[RankEvent]]) -> Iterator[RecordedMessage]:
    """Messages with their steps: a rank's events come one after another, and both ends of a message in one step."""
    steps = [list(range(1, len(of_rank) + 1)) for of_rank in events]
    ends = list(pairs(events))
    moved = True
    while moved:
        moved = False
        for (source, i), (dest, j) in ends:
            later = max(steps[source][i], steps[dest][j])
            for rank, at in ((source, i), (dest, j)):
                if steps[rank][at] < later:
                    moved = True
                    steps[rank][at:] = [max(step, later + k) for k, step in enumerate(steps[rank][at:])]
    for (source, i), (dest, _) in ends:
        yield RecordedMessage(steps[source][i], source, dest, events[source][i].items, events[source][i].nbytes)


def pairs(events: Sequence[Sequence[RankEvent]]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Each send with its receive, both as (rank, event): between two ranks, messages arrive in order."""
    for source, of_source in enumerate(events):
        for dest, of_dest in enumerate(events):
            sends = [(source, i) for i, event in enumerate(of_source) if event.dest == dest]
            receives = [(dest, j) for j, event in enumerate(of_dest) if event.source == source]
            yield from zip(sends, receives, strict=True)
