"""Sends and receives as an `Exchange` knows them: started, on their way, and waited for."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Start:
    """A send or a receive, as its rank describes it."""

    number: int  # by which its rank names it
    call: str  # "isend", as reports name it
    sends: bool
    comm: str
    lane: str
    peer: int  # a rank of the communicator
    tag: int
    room: int | None  # bytes that a receive has room for; None: any number
    phase: str
    where: str  # "exercise.py:31"
    data: np.ndarray | None = None  # (bytes,) uint8 of a send


# Of a receive, the message's tag and its bytes, or None if these did not fit; of a send, (0, None).
Arrived = tuple[int, np.ndarray | None]


class Path:
    """Messages of one kind from one rank to another, which keep their order."""

    def __init__(self, comm: str, lane: str, source: int, dest: int) -> None:
        self.key = source, dest, comm, lane  # source and dest are ranks of the world
        self.source, self.dest, self.comm, self.lane = source, dest, comm, lane
        self.flying: deque[Operation] = deque()  # sends that have not arrived
        self.arrived: deque[Operation] = deque()  # arrived sends that still have no receive
        self.receives: deque[Operation] = deque()  # receives that still have no send
        self.sent = 0


@dataclass(eq=False, slots=True)
class Operation:
    """A send or a receive under way."""

    path: Path
    start: Start
    through: bool = False
    result: Arrived = (0, None)
    wait: "Wait | None" = None  # in which its rank waits for it

    @property
    def peer(self) -> int:
        """The world rank at the other end."""
        return self.path.dest if self.start.sends else self.path.source


@dataclass(eq=False, slots=True)
class Wait:
    """What a rank waits for."""

    call: str  # "recv", as reports name it
    where: str
    peers: list[int] = field(default_factory=list)  # ranks of the world
    operations: list[Operation] = field(default_factory=list)  # which must all complete
    left: int = 0  # how many of them are not complete yet
    meeting: tuple[str, str] | None = None  # (communicator, call) that all members must make
    question: Callable[[], Any] | None = None  # of a rank that only polls: always has an answer
