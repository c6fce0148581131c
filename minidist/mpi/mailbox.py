"""Messages for ranks that do not know who will speak next, or when: a master and its workers, servers and clients.

Neither `post` nor `poll` ever blocks, so a rank can work, look into its mailbox now and then, and sleep when there is
nothing to do. A blocked receive would spin on a core that another rank needs.

A message is a small Python value, which counts as control traffic. It may bring an array along, which counts as payload
in the phase in which it is posted.
"""

import pickle
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from minidist.mpi.comm import Comm
from minidist.mpi.port import Handle


class Mail(NamedTuple):
    """What `poll` returns: who sent it, the value, and the array that came with it."""

    source: int
    message: Any
    payload: np.ndarray | None


class Mailbox:
    """Every rank has one of each number: `post` puts a message into another rank's, `poll` looks into one's own.

    Messages of one rank arrive in the order in which it posted them, except that one with a payload arrives when all of
    it is here. Sends are synchronous: a message is delivered when its receiver has taken it, and not while it lies in
    some buffer of MPI, so that nothing of a job can turn up in the next one. All ranks make the same mailboxes; those
    that are in use at the same time have different numbers.
    """

    def __init__(self, comm: Comm, number: int) -> None:
        self.comm, self.port, self.number = comm, comm._port, number
        self.own: deque[Mail] = deque()  # posted to oneself
        self.sending: list[Handle] = []
        self.receiving: list[tuple[Handle, Mail]] = []  # payloads under way

    def post(self, dest: int, message: Any, payload: np.ndarray | None = None) -> None:
        """Send; returns at once. A payload must stay as it is until `quiet`."""
        if dest == self.comm.rank:
            self.own.append(Mail(dest, message, payload))
            return
        if not 0 <= dest < self.comm.size:
            raise self.comm._no_such_rank("post to", dest)
        ledger = self.comm.ledger
        text = pickle.dumps((message, None if payload is None else (payload.shape, payload.dtype.name)))
        ledger.control[0] += len(text)
        ledger.control[1] += 1
        self.sending.append(self.port.post(text, dest, self.number))
        if payload is not None:
            array = self.comm._bytes(payload)
            ledger.count(self.comm.world_ranks[dest], payload.nbytes)
            self.sending.append(self.port.enclose(array, dest, self.number))

    def poll(self) -> Mail | None:
        """The next message that is here, from whichever rank; None if there is none now."""
        if self.own:
            return self.own.popleft()
        self._forget_delivered()
        while letter := self.port.collect(self.number):
            source, text = letter
            message, described = pickle.loads(text)
            if described is None:
                return Mail(source, message, None)
            payload = np.empty(*described)
            handle = self.port.extract(self.comm._bytes(payload), source, self.number)
            self.receiving.append((handle, Mail(source, message, payload)))
        for i, (handle, mail) in enumerate(self.receiving):
            if not self.port.unfinished([handle]):
                del self.receiving[i]
                return mail
        return None

    @property
    def quiet(self) -> bool:
        """Whether all that was posted has been delivered, and no payload is on its way here."""
        self._forget_delivered()
        return not self.sending and not self.receiving

    def close(self) -> None:
        """Return when all that was posted has been delivered."""
        while not self.quiet:
            time.sleep(0.001)

    def _forget_delivered(self) -> None:
        self.sending = self.port.unfinished(self.sending)
