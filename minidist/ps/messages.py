"""The parameter server's messages: what is in one, a rank's mailbox, and the order in which a server takes them.

A message is a header of twelve numbers, 96 bytes, then as many keys and values as the header says.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


class Kind(IntEnum):
    """What a message is about."""

    PUSH = 0  # worker to server: a gradient
    PULL = 1  # worker to server: weights, please, as soon as they are fresh enough
    VALUES = 2  # server to worker: here they are
    NORM = 3  # server to server: Σ g² over my keys
    COPY = 4  # server to its neighbour: make this update on your copy
    COPIED = 5  # the last neighbour to the server: all have made it
    CLOSED = 6  # a server's host to everyone: nobody listens here any more
    DONE = 7  # worker to everyone: I have trained, and what I pushed is safe


# The phases under which the wire counts keys and values.
PHASES = {
    Kind.PUSH: ("push keys", "push values"),
    Kind.PULL: ("pull keys", ""),
    Kind.VALUES: ("clocks", "pull values"),
    Kind.COPY: ("", "replicate values"),
}


class Header(NamedTuple):
    """What a receiver needs to know. Sent as float64, in which whole numbers up to 2^53 are exact."""

    kind: int
    shard: int = 0  # whose keys it is about
    worker: int = 0  # who pushes or pulls; NORM: the shard that tells; CLOSED: the rank
    range: int = -1  # the number of a range of keys; -1: all of the shard
    clock: int = 0  # iterations that the worker had behind it
    more: int = 0  # whether the worker has another message for this shard at the same moment
    keys: int = 0  # keys that follow (clocks in VALUES); -1: the signature of keys listed before
    values: int = 0  # values that follow
    first: int = 0  # the number of the first training step in the worker's iteration
    stamp: float = 0.0  # simulated time at which the worker turned to the servers: the order of all that servers do
    time: float = 0.0  # simulated time at which the message's last byte has left
    number: float = 0.0  # PUSH: share of the batch; COPY: that, or the clipping factor; NORM: Σ g²; VALUES: held for

    def names_same(self, other: "Header") -> bool:
        """Whether both are about the same update."""
        return self[1:5] == other[1:5]


@dataclass
class Message:
    """A header, keys and values, and how many bytes of them came over the wire."""

    header: Header
    keys: Array | None = None  # (n,) int64
    values: Array | None = None  # (n,)
    nbytes: int = 0


class Mailbox:
    """Messages to and from any rank, this one included. It never waits for another rank."""

    def __init__(self, comm: Comm, dtype: type[np.floating]) -> None:
        self.comm, self.dtype, self.rank = comm, dtype, comm.rank
        self.closed: set[int] = set()  # ranks whose server has stopped
        self.local: deque[Message] = deque()  # to this rank itself

    def send(self, dest: int, message: Message, again: bool = False) -> None:
        """Send in the background. again: it was sent before, to a server that stopped, and is counted apart."""
        header, keys, values = message.header, message.keys, message.values
        if dest == self.rank:
            self.local.append(Message(header, keys, None if values is None else values.copy()))
            return
        phases = ("sent again",) * 2 if again else PHASES.get(Kind(header.kind), ("", ""))
        with self.comm.phase("headers"):
            self.comm.post(np.array(header, np.float64), dest)
        for array, phase in zip((keys, values), phases, strict=True):
            if array is not None and array.size:
                with self.comm.phase(phase):
                    self.comm.post(array, dest)

    def next(self) -> Message | None:
        """A message that has arrived, from whoever spoke first; None if there is none."""
        if self.local:
            return self.local.popleft()
        source = self.comm.probe()
        if source is None:
            return None
        numbers = np.empty(len(Header._fields))
        self.comm.recv(numbers, source)
        message = Message(Header(*map(int, numbers[:-3]), *map(float, numbers[-3:])))
        if message.header.keys:
            message.keys = np.empty(abs(message.header.keys), np.int64)
            self.comm.recv(message.keys, source)  # what follows a header comes from the same rank
            message.nbytes += message.keys.nbytes
        if message.header.values:
            message.values = np.empty(message.header.values, self.dtype)
            self.comm.recv(message.values, source)
            message.nbytes += message.values.nbytes
        return message


class Inbox:
    """A server's messages from its workers, given out in the order of simulated time: the earliest first, but only when
    no worker can still send an earlier one. That is so when each of them

        has a message here,
        or has sent all of a moment's messages, and waits for the answer to a pull that is held back here,
        or has sent its last message.

    The first two need no clairvoyance: a worker's stamps only grow, and what it sends after an answer is later than it.
    """

    def __init__(self, workers: int) -> None:
        self.waiting: list[deque[Message]] = [deque() for _ in range(workers)]
        self.more = [True] * workers  # whether the worker is in the middle of a moment's messages
        self.finished = [False] * workers

    def add(self, message: Message) -> None:
        self.waiting[message.header.worker].append(message)

    def next(self, held_back: Collection[int]) -> Message | None:
        """The earliest message, or None if it is too soon to tell. held_back: workers with a pull that is held back."""
        for worker, messages in enumerate(self.waiting):
            waits_for_us = worker in held_back and not self.more[worker]
            if not (messages or waits_for_us or self.finished[worker]):
                return None
        earliest = [(queue[0].header.stamp, worker) for worker, queue in enumerate(self.waiting) if queue]
        if not earliest:
            return None
        first = min(earliest)[1]
        message = self.waiting[first].popleft()
        self.more[first] = bool(message.header.more)
        self.finished[first] = message.header.kind == Kind.PULL and message.header.range < 0
        return message


class KeyLists:
    """Key caching (Li et al., section 4.2): a list of keys that the receiver has seen is replaced by its signature."""

    def __init__(self, cache: bool) -> None:
        self.cache = cache
        self.seen: dict[int, Array] = {}  # by a receiver: signature -> keys
        self.told: set[tuple[int, int]] = set()  # by a sender: (receiver, signature)

    def shortened(self, keys: Array, receiver: int) -> tuple[int, Array]:
        """What to send instead of `keys`, and how many they are for the header."""
        signature = int.from_bytes(blake2b(keys.tobytes(), digest_size=8).digest(), "big", signed=True)
        if self.cache and (receiver, signature) in self.told:
            return -1, np.array([signature])
        self.told.add((receiver, signature))
        return keys.size, keys

    def listed(self, message: Message) -> Array | None:
        """The keys that a message lists or names; None if it means all of its range."""
        if message.keys is None or not self.cache:
            return message.keys
        if message.header.keys < 0:
            return self.seen[int(message.keys[0])]
        signature = int.from_bytes(blake2b(message.keys.tobytes(), digest_size=8).digest(), "big", signed=True)
        self.seen[signature] = message.keys
        return message.keys

    def dense(self, message: Message, lo: int, hi: int, dtype: type[np.floating]) -> Array:
        """The values of keys lo to hi-1; of keys that the message does not list, 0."""
        keys, values = self.listed(message), message.values
        if keys is None and values is not None:
            return values
        whole = np.zeros(hi - lo, dtype)
        if keys is not None and values is not None:
            whole[keys - lo] = values
        return whole
