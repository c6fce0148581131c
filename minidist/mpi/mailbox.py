"""Messages for ranks that do not know which rank will send next, or when: a master and workers, servers and clients.

Neither `post` nor `poll` ever blocks, so a rank can work, look into its mailbox now and then, and sleep when there is
nothing to do. A blocked receive would spin on a core that another rank needs.

A message is a small Python value, which counts as control traffic. It may carry an array, which counts as payload in
the phase in which it is posted.
"""

import pickle
import time
from collections import deque
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from minidist.mpi.comm import Comm
from minidist.mpi.port import Handle


class Letter(NamedTuple):
    """What `poll` returns: the sender, the value, and the array that came with it."""

    source: int
    message: Any
    payload: np.ndarray | None


UNDER_WAY = 4  # messages to one rank that MPI gets at a time: it has room for 64 from a process to all others


class NumberedMailbox:
    """Every rank has one mailbox per number. `post` puts a message into another rank's; `poll` looks into this rank's.

    Messages of one rank arrive in the order in which it posted them, except that one with a payload arrives when all of
    its payload has. Sends are synchronous: a message is delivered when its receiver has taken it, not when it lies
    in a buffer of MPI. So no message of a job can turn up in the next one. All ranks make the same mailboxes; those in
    use at the same time have different numbers.

    If a rank does not look into its mailbox, its senders can still reach the other ranks. Messages that it has not
    taken wait at the sender, which sends a few at a time, at the next `post`, `poll` or `push`.
    """

    def __init__(self, comm: Comm, number: int) -> None:
        self.comm, self.port, self.number = comm, comm._port, number
        self.own: deque[Letter] = deque()  # messages that this rank posted to itself
        self.waiting: dict[int, deque[tuple[bytes, np.ndarray | None]]] = {}  # for each rank, in the order of posting
        self.sending: dict[int, list[Handle]] = {}
        self.receiving: list[tuple[Handle, Letter]] = []  # payloads under way

    def post(self, dest: int, message: Any, payload: np.ndarray | None = None) -> None:
        """Send; returns at once. The payload must not change until `pending` is empty."""
        if dest == self.comm.rank:
            self.own.append(Letter(dest, message, payload))
            return
        if not 0 <= dest < self.comm.size:
            raise self.comm._no_such_rank("post to", dest)
        ledger = self.comm.ledger
        text = pickle.dumps((message, None if payload is None else (payload.shape, payload.dtype.name)))
        ledger.count_control(self.comm.world_ranks[dest], len(text))
        if payload is not None:
            ledger.count(self.comm.world_ranks[dest], payload.nbytes)
        self.waiting.setdefault(dest, deque()).append((text, None if payload is None else self.comm._bytes(payload)))
        self.push()

    def push(self) -> None:
        """Forget delivered messages, and send waiting ones."""
        for dest, waiting in self.waiting.items():
            sending = self.sending[dest] = self.port.unfinished(self.sending.get(dest, []))
            while waiting and len(sending) < UNDER_WAY:
                text, array = waiting.popleft()
                sending.append(self.port.post(text, dest, self.number))
                if array is not None:
                    sending.append(self.port.enclose(array, dest, self.number))

    def poll(self) -> Letter | None:
        """The next message that has arrived, from any rank; None if there is none now."""
        if self.own:
            return self.own.popleft()
        self.push()
        while letter := self.port.collect(self.number):
            source, text = letter
            message, described = pickle.loads(text)
            if described is None:
                return Letter(source, message, None)
            payload = np.empty(*described)
            self.comm.ledger.received += payload.nbytes
            handle = self.port.extract(self.comm._bytes(payload), source, self.number)
            self.receiving.append((handle, Letter(source, message, payload)))
        for i, (handle, mail) in enumerate(self.receiving):
            if not self.port.unfinished([handle]):
                del self.receiving[i]
                return mail
        return None

    def pending(self) -> set[int]:
        """The ranks that have not taken all messages posted to them, or whose payloads are on their way here."""
        self.push()
        return {dest for dest, handles in self.sending.items() if handles} | {mail.source for _, mail in self.receiving}

    def close(self, besides: Collection[int] = ()) -> None:
        """Return when all posted messages have been delivered, except those that these ranks have not taken."""
        while pending := self.pending():
            if pending <= set(besides):
                LEFT.append((self.sending, self.receiving))
                return
            time.sleep(0.001)


LEFT: list[Any] = []  # memory that MPI may still read or write: it must outlive MPI
