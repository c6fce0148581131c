"""A second count of every message, below `Comm` and at both ends, for programs whose own count cannot be trusted.

The ledger of a Comm belongs to the program that uses it. A grader runs a student's program, so it puts its own port
between that program's Comm and the transport. The port notes each message, with the line of the program that sent it.
So what one rank says it sent can be compared with what the other says it received.
"""

import sys
from typing import Any, NamedTuple, cast

import numpy as np

from minidist.mpi.comm import Comm, Ledger
from minidist.mpi.port import TOO_LONG, Arrival, Handle, Port


class WireWitness:
    """What one rank has sent and received. Peers are named by their rank in the world."""

    def __init__(self, ledger: Ledger, source: str) -> None:
        self.ledger, self.source = ledger, source
        self.sent: dict[tuple[str, int, int], list[int]] = {}  # (phase, peer, line of source) -> [bytes, messages]
        self.received: dict[int, list[int]] = {}  # peer -> [bytes, messages]

    def note_sent(self, peer: int, nbytes: int) -> None:
        _add(self.sent.setdefault((self.ledger.phase, peer, self._line()), [0, 0]), nbytes)

    def note_received(self, peer: int, nbytes: int) -> None:
        _add(self.received.setdefault(peer, [0, 0]), nbytes)

    def _line(self) -> int:
        """The line of the source file that is running now, in its innermost function; 0 if there is none."""
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename != self.source:
            frame = frame.f_back
        return frame.f_lineno if frame.f_back else 0


def witnessed(comm: Comm, source: str) -> tuple[Comm, WireWitness]:
    """A second Comm over the same communicator, and the witness of what the program in the file `source` sends."""
    witness = WireWitness(comm.ledger, source)
    return Comm(cast(Port, WitnessedPort(comm._port, witness)), comm.ledger), witness


class WitnessedPort:
    """A port in front of another one: it notes the payload that passes, and forwards every call."""

    def __init__(self, port: Port, witness: WireWitness) -> None:
        self.port, self.witness = port, witness

    def __getattr__(self, name: str) -> Any:
        return getattr(self.port, name)

    def split(self, color: int, key: int) -> "WitnessedPort":
        return WitnessedPort(self.port.split(color, key), self.witness)

    def send(self, array: np.ndarray, dest: int, tag: int) -> None:
        self._sent(array, dest)
        self.port.send(array, dest, tag)

    def recv(self, out: np.ndarray, source: int) -> Arrival:
        return self._received(source, self.port.recv(out, source))

    def sendrecv(self, array: np.ndarray, dest: int, tag: int, out: np.ndarray, source: int) -> Arrival:
        self._sent(array, dest)
        return self._received(source, self.port.sendrecv(array, dest, tag, out, source))

    def isend(self, array: np.ndarray, dest: int, tag: int) -> Handle:
        self._sent(array, dest)
        return self.port.isend(array, dest, tag)

    def irecv(self, out: np.ndarray, source: int) -> Handle:
        return Receiving(source, self.port.irecv(out, source))

    def wait(self, handle: Handle) -> Arrival:
        if isinstance(handle, Receiving):
            return self._received(handle.source, self.port.wait(handle.inner))
        return self.port.wait(handle)

    def done(self, handle: Handle) -> bool:
        return self.port.done(handle.inner if isinstance(handle, Receiving) else handle)

    def _sent(self, array: np.ndarray, dest: int) -> None:
        self.witness.note_sent(self.port.world_ranks[dest], array.nbytes)

    def _received(self, source: int, arrival: Arrival) -> Arrival:
        if arrival[1] != TOO_LONG:
            self.witness.note_received(self.port.world_ranks[source], arrival[1])
        return arrival


class Receiving(NamedTuple):
    """A receive under way, to be noted when it is complete."""

    source: int
    inner: Handle


def _add(entry: list[int], nbytes: int) -> None:
    entry[0] += nbytes
    entry[1] += 1
