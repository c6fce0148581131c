"""Ranks that take turns in one process. Each is a greenlet: a function with a stack of its own, in the same thread.

A rank runs until it must wait; then the next rank that can go on runs. There are no threads, so nothing happens at the
same time, and a run repeats itself exactly. This is the only module that imports greenlet.
"""

import contextvars
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Generic, TypeVar

import greenlet

from minidist.exchange.debuggers import announcer

T = TypeVar("T")

ATTEMPTS = 3  # to end a rank whose program catches even Ended, and waits again


class RunEnded(BaseException):
    """Raised in the remaining ranks when the run has ended early. No program should catch it."""


class Turns(Generic[T]):
    """`n` ranks, one of which runs at a time."""

    def __init__(self, n: int, idle: Callable[[], None]) -> None:
        """idle: called when no rank can go on, and some have not finished; wakes at least one, or raises."""
        self.n, self.idle = n, idle
        self.ready: deque[int] = deque()  # ranks that can go on, in this order
        self.running = -1  # the rank that runs, or ran last
        self.switches = 0  # turns so far
        self.announce: Callable[[int], object] | None = None  # called with a rank before each of its turns
        self.ended = False
        self.results: dict[int, T] = {}  # of the ranks that have finished
        self._ranks: list[greenlet.greenlet] = []

    def run(self, be_rank: Callable[[int], T], order: Iterable[int]) -> list[T]:
        """Call `be_rank(rank)` for every rank; return the results, in order of rank. order: in which the ranks begin.

        The first exception ends all ranks, and is raised here; `running` is its rank.
        """
        self._hub = greenlet.getcurrent()
        self._trace = sys.gettrace()  # tracing is per greenlet: a debugger would not see ranks
        self._announce = announcer() or self.announce

        def begin(rank: int) -> None:
            if self._trace:
                sys.settrace(self._trace)
            self.results[rank] = be_rank(rank)

        for rank in range(self.n):
            made = greenlet.greenlet(partial(begin, rank), self._hub)
            made.gr_context = contextvars.copy_context()  # np.errstate and others: the caller's, and then its own
            self._ranks.append(made)
        self.ready.extend(order)
        try:
            while len(self.results) < self.n:
                if not self.ready:
                    self.running = -1
                    self.idle()
                self._switch()
        finally:
            self._end()
        return [self.results[rank] for rank in range(self.n)]

    def run_named(self, be_rank: Callable[[int], T], order: Iterable[int]) -> list[T]:
        """The same; a note of the exception names its rank."""
        try:
            return self.run(be_rank, order)
        except Exception as error:
            if self.running >= 0:
                error.add_note(f"on rank {self.running} of {self.n}")
            raise

    def wait(self) -> None:
        """Let the others run until something has put this rank into `ready`."""
        if self.ready and self._ranks[self.ready[0]]:
            self._switch()  # from rank to rank, without the way through `run`
        else:
            self._hub.switch()  # a rank begins there: a greenlet begins on top of the stack of the one that starts it
        if self.ended:
            raise RunEnded

    def _switch(self) -> None:
        """Let the next rank run."""
        rank = self.running = self.ready.popleft()
        self.switches += 1
        if self._announce:
            self._announce(rank)
        self._ranks[rank].switch()

    def frame(self, rank: int) -> FrameType | None:
        """Where a rank that waits has stopped; None if it has finished, or not begun."""
        return self._ranks[rank].gr_frame

    def _end(self) -> None:
        """End the ranks that have not finished: they close what they have open."""
        self.ended = True
        for rank in self._ranks:
            for _ in range(ATTEMPTS if rank else 0):  # a rank that has begun and not finished is true
                with suppress(BaseException):  # the first exception has ended the run, and is the one to report
                    rank.throw(RunEnded)
