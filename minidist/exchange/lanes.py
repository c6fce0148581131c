"""Messages of ranks in one process that have not met: the k-th send of a pair of ranks meets its k-th receive."""

from collections import deque
from typing import Any


class StartedOperation:
    """A send or a receive that a rank has started."""

    __slots__ = ("array", "awaited", "nbytes", "number", "peer", "rank", "tag", "through")

    number: int  # of a send that has met no receive: they are numbered in the order in which they started

    def __init__(self, rank: int) -> None:
        self.rank = rank  # of the world, as is its peer

    def start(self, peer: int, array: Any, tag: int = 0) -> "StartedOperation":
        self.peer, self.array, self.tag, self.nbytes = peer, array, tag, 0
        self.through = self.awaited = False
        return self


# Operations of one pair of ranks that have not met another: almost always one.
Waiting = dict[int, StartedOperation | deque[StartedOperation]]  # by source · size + dest


class Lane:
    """Messages of one kind in one communicator: sends that have met no receive yet, and receives that have met no
    send. What has met leaves no trace: a thousand ranks are a million pairs."""

    def __init__(self) -> None:
        self.sends: Waiting = {}
        self.receives: Waiting = {}


def put(waiting: Waiting, pair: int, operation: StartedOperation) -> None:
    """Let an operation wait, as the last of its pair."""
    found = waiting.setdefault(pair, operation)
    if found is not operation:
        if isinstance(found, StartedOperation):
            found = waiting[pair] = deque((found,))
        found.append(operation)


def take(waiting: Waiting, pair: int) -> StartedOperation | None:
    """The operation of a pair that has waited longest, if there is one."""
    found = waiting.pop(pair, None)
    if not isinstance(found, deque):
        return found
    first = found.popleft()
    if found:
        waiting[pair] = found
    return first


def first_of(waiting: Waiting, pair: int) -> StartedOperation | None:
    """The same, which stays."""
    found = waiting.get(pair)
    return found[0] if isinstance(found, deque) else found
