"""Messages from stage to stage, between ranks: tensors as payload, in phases "activations" and "gradients"."""

import numpy as np

from minidist.mpi.comm import Comm, Request
from minidist.pp.instructions import ACTIVATION, GRADIENT, Receive, Send, StagePlace

Array = np.ndarray


class Links:
    """One worker's messages to and from its neighbor stages. Sending does not wait."""

    def __init__(self, at: StagePlace, comm: Comm) -> None:
        # A communicator for each kind, as for stamps (`minidist/pp/watch.py`): two stages may be each other's next.
        self.at, self.comms = at, {what: comm.split(0) for what in (ACTIVATION, GRADIENT)}
        self.requests: list[Request] = []
        self.to_itself: dict[tuple[str, int, int], Array] = {}  # from chunk to chunk of one rank

    def send(self, message: Send, array: Array) -> None:
        """Send an array, which must not be written to afterwards."""
        comm, dest = self.comms[message.what], self.at.peer(message)
        if dest == comm.rank:
            self.to_itself[self.at.name(message)] = array
            return
        with comm.phase(message.what, leave_open=True):
            self.requests.append(comm.isend(array, dest))
        self.requests = [request for request in self.requests if not request.done()]

    def receive(self, message: Receive, out: Array) -> Array:
        """Receive into `out`, a buffer for this message alone; what a rank sends to itself is returned as it is."""
        comm, source = self.comms[message.what], self.at.peer(message)
        if source == comm.rank:
            return self.to_itself.pop(self.at.name(message))
        comm.recv(out, source)
        return out

    def wait(self) -> None:
        """Wait until everything that was sent has arrived."""
        for request in self.requests:
            request.wait()
        self.requests.clear()
