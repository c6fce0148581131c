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
from minidist.mpi.start import MPI


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
        self.comm = comm
        self.tag, self.payload_tag = 2 * number + 2, 2 * number + 3  # 0 is that of the other control traffic
        self.own: deque[Mail] = deque()  # posted to oneself
        self.sending: list[tuple[MPI.Request, Any]] = []  # with the buffer that must live until it is delivered
        self.receiving: list[tuple[MPI.Request, Mail]] = []  # payloads under way

    def post(self, dest: int, message: Any, payload: np.ndarray | None = None) -> None:
        """Send; returns at once. A payload must stay as it is until `quiet`."""
        if dest == self.comm.rank:
            self.own.append(Mail(dest, message, payload))
            return
        if not 0 <= dest < self.comm.size:
            raise self.comm._no_such_rank("post to", dest)
        control, ledger = self.comm._control, self.comm.ledger
        text = pickle.dumps((message, None if payload is None else (payload.shape, payload.dtype.name)))
        ledger.control[0] += len(text)
        ledger.control[1] += 1
        self.sending.append((control.Issend([text, MPI.BYTE], dest, self.tag), text))
        if payload is not None:
            buffer = self.comm._bytes(payload)
            ledger.count(self.comm.world_ranks[dest], payload.nbytes)
            self.sending.append((control.Issend(buffer, dest, self.payload_tag), payload))

    def poll(self) -> Mail | None:
        """The next message that is here, from whichever rank; None if there is none now."""
        if self.own:
            return self.own.popleft()
        self._forget_delivered()
        control, status = self.comm._control, MPI.Status()
        while matched := control.Improbe(MPI.ANY_SOURCE, self.tag, status):
            source, text = status.Get_source(), bytearray(status.Get_count(MPI.BYTE))
            matched.Recv([text, MPI.BYTE])
            message, described = pickle.loads(text)
            if described is None:
                return Mail(source, message, None)
            payload = np.empty(*described)
            request = control.Irecv(self.comm._bytes(payload), source, self.payload_tag)
            self.receiving.append((request, Mail(source, message, payload)))
        for i, (request, mail) in enumerate(self.receiving):
            if request.Test():
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
        self.sending = [sending for sending in self.sending if not sending[0].Test()]
