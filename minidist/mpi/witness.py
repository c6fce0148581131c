"""A second count of every message, below `Comm` and at both ends, for whoever must not take a rank's word for it.

The ledger of a Comm belongs to the program that uses it. A grader runs somebody else's program, so it puts a `Wire`
between that program's Comm and MPI: the wire notes what passes, with the line of the program that sent it, and what one
rank says that it sent can be held against what the other says that it received.
"""

import sys
from typing import Any, cast

from minidist.mpi.comm import Comm, Ledger
from minidist.mpi.start import MPI


class Witness:
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


def witnessed(comm: Comm, source: str) -> tuple[Comm, Witness]:
    """The same communicator once more, and the witness of what is sent over it by the program in the file `source`."""
    witness = Witness(comm.ledger, source)
    return Comm(cast(MPI.Comm, Wire(comm._mpi, witness)), comm.ledger), witness


class Wire:
    """An MPI communicator that notes what passes; whatever else is asked of it, the communicator answers."""

    def __init__(self, mpi: MPI.Comm, witness: Witness) -> None:
        self.mpi, self.witness = mpi, witness
        self.world_ranks = mpi.Get_group().Translate_ranks(None, MPI.COMM_WORLD.Get_group())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mpi, name)

    def Split(self, color: int, key: int) -> "Wire":
        return Wire(self.mpi.Split(color, key), self.witness)

    def Send(self, buffer: Any, dest: int, tag: int) -> None:
        self._sent(buffer, dest)
        self.mpi.Send(buffer, dest, tag)

    def Recv(self, buffer: Any, source: int, tag: int, status: MPI.Status) -> None:
        self.mpi.Recv(buffer, source, tag, status)
        self._received(source, status)

    def Sendrecv(
        self, sending: Any, dest: int, sendtag: int, receiving: Any, source: int, recvtag: int, status: MPI.Status
    ) -> None:
        self._sent(sending, dest)
        self.mpi.Sendrecv(sending, dest, sendtag, receiving, source, recvtag, status)
        self._received(source, status)

    def Isend(self, buffer: Any, dest: int, tag: int) -> MPI.Request:
        self._sent(buffer, dest)
        return self.mpi.Isend(buffer, dest, tag)

    def Irecv(self, buffer: Any, source: int, tag: int) -> "Receiving":
        return Receiving(self, source, self.mpi.Irecv(buffer, source, tag))

    def _sent(self, buffer: Any, dest: int) -> None:
        self.witness.note_sent(self.world_ranks[dest], buffer[0].nbytes)

    def _received(self, source: int, status: MPI.Status) -> None:
        self.witness.note_received(self.world_ranks[source], status.Get_count(MPI.BYTE))


class Receiving:
    """A receive under way on a Wire, noted when it is done."""

    def __init__(self, wire: Wire, source: int, handle: MPI.Request) -> None:
        self.wire, self.source, self.handle = wire, source, handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)

    def Wait(self, status: MPI.Status) -> None:
        self.handle.Wait(status)
        self.wire._received(self.source, status)


def _add(entry: list[int], nbytes: int) -> None:
    entry[0] += nbytes
    entry[1] += 1
