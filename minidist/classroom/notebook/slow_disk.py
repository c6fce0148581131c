"""A disk on a logical clock, for lessons: arrays that are read and written while a rank computes.

    disk = SlowDisk(files, read=3, write=3)
    move = disk.read(5, room)              # begun: from file 5 into the array `room`
    disk.work("update", 4, 2, other)       # a rank computes for 2 with the array `other`
    move.wait()                            # now file 5 is in the room

It reads one file at a time and writes one at a time, in the order in which it is asked. A move's data arrives at the
end of its time, no sooner: a rank that uses a room too early finds its old content. No real time passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Took(NamedTuple):
    """What the disk or a rank did, and from when to when."""

    what: str  # "read", "write", or the caller's name for work
    number: int
    begin: float
    end: float


class Conflict(NamedTuple):
    """A room was used before the wait() of a move that uses it."""

    what: str
    number: int
    move: str
    moved: int


@dataclass(eq=False)
class Move:
    """A read or a write that has begun."""

    disk: "SlowDisk"
    what: str
    number: int
    room: Array
    end: float
    done: bool = False
    waited: bool = False

    def wait(self) -> None:
        """Wait until it is over. From then on the room is the caller's again."""
        self.disk.until(max(self.disk.now, self.end))
        self.waited = True


class SlowDisk:
    """Files with the numbers 0, 1, ..., each an array; all have one shape."""

    def __init__(
        self, files: Sequence[Array], read: float = 1, write: float = 1, rooms: Sequence[Array] | None = None
    ) -> None:
        """read, write: the time that one takes. rooms: the arrays that the caller may use; None: any."""
        self.files = [np.array(file) for file in files]
        self.now = 0.0
        self.takes = {"read": read, "write": write}
        self.free = {"read": 0.0, "write": 0.0}  # when the disk can begin the next one
        self.moves: list[Move] = []
        self.log: list[Took] = []
        self.conflicts: list[Conflict] = []
        self.rooms = rooms
        # What was done, and with which number, with an array that is not in the rooms.
        self.elsewhere: list[tuple[str, int]] = []

    def read(self, number: int, room: Array) -> Move:
        """Begin to read a file into a room."""
        return self._begin("read", number, room)

    def write(self, number: int, room: Array) -> Move:
        """Begin to write a room's content to a file."""
        return self._begin("write", number, room)

    def work(self, what: str, number: int, took: float, room: Array | None = None) -> None:
        """The caller computes with a room's content, for the time `took`."""
        if room is not None:
            self._look(what, number, room)
        begin = self.now
        self.until(begin + took)
        self.log.append(Took(what, number, begin, self.now))

    def until(self, moment: float) -> None:
        """Let time pass until `moment`: moves that end by then arrive."""
        for move in sorted(self.moves, key=lambda move: move.end):
            if not move.done and move.end <= moment:
                file = self.files[move.number]
                source, target = (file, move.room) if move.what == "read" else (move.room, file)
                target[...] = source
                move.done = True
        self.moves = [move for move in self.moves if not (move.done and move.waited)]
        self.now = moment

    @property
    def under_way(self) -> list[Move]:
        """Moves that were not waited for yet."""
        return [move for move in self.moves if not move.waited]

    def _begin(self, what: str, number: int, room: Array) -> Move:
        if not 0 <= number < len(self.files):
            raise IndexError(f"{what} of file {number}: there are {len(self.files)}, from 0 on")
        self._look(what, number, room)
        begin = max(self.now, self.free[what])
        self.free[what] = begin + self.takes[what]
        move = Move(self, what, number, room, self.free[what])
        self.moves.append(move)
        self.log.append(Took(what, number, begin, move.end))
        self.until(self.now)  # a move that takes no time is over
        return move

    def _look(self, what: str, number: int, room: Array) -> None:
        if self.rooms is not None and not any(np.shares_memory(room, each) for each in self.rooms):
            self.elsewhere.append((what, number))
        for move in self.under_way:
            if np.shares_memory(move.room, room):
                self.conflicts.append(Conflict(what, number, move.what, move.number))
