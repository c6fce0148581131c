"""The wire over MPI. No other module of the project imports mpi4py, and this one is loaded when ranks start.

Importing it starts MPI, which leaves nothing behind, however the job ends: see shm.py.
"""

import os
import sys
import threading
import time

import numpy as np

from minidist.mpi import environment, interface, shm
from minidist.mpi.comm import Comm, Ledger
from minidist.mpi.port import TOO_LONG, Arrival

shm.refuse()

# Ranks per core, if they may use all cores. Hosts made of namespaces share this machine's.
CROWD = (environment.ranks() if interface.HOSTS in os.environ else environment.local_ranks()) / (os.cpu_count() or 1)
if CROWD > 1:  # otherwise MPICH polls a thousand times before it yields to another rank of the core
    os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")

from mpi4py import MPI  # noqa: E402  (this is what starts it)

BYTE = MPI.BYTE
LOOK = 12e-6  # about how many seconds a look for a message takes
SOON = 300  # looks after which the other rank is not amid a step: it begins, compares or reports, and needs the core
NAP = 5e-4  # seconds from then on between two looks
POLL = 1e-3  # seconds between two calls of `Progress`


def refuse_another_launcher() -> None:
    """If the launcher belongs to another MPI than mpi4py's, each of its ranks silently becomes a job of one rank."""
    started, known = environment.ranks(), MPI.COMM_WORLD.Get_size()
    if known == 1 < started:
        if not environment.rank():
            line = f"mpirun or srun has started {started} ranks, and MPI knows {known}: they are not of the same MPI"
            sys.stderr.write(f"minidist: error: {line}: python -m minidist doctor says more\n")
        sys.exit(2)


refuse_another_launcher()
begun = MPI.COMM_WORLD.Ibarrier()
while not begun.Test():  # a Barrier's polling would take the core from ranks that still import
    time.sleep(NAP)
# Every rank has opened the segment, so its name can go: see shm.py.
shm.unlink()


class MPIPort:
    """The port of an MPI communicator. Control and letters travel on a duplicate of it."""

    def __init__(self, mpi: MPI.Comm) -> None:
        self.mpi, self._control = mpi, mpi.Dup()
        self.rank, self.size = mpi.Get_rank(), mpi.Get_size()
        self.world_ranks: list[int] = mpi.Get_group().Translate_ranks(None, MPI.COMM_WORLD.Get_group())
        self.largest_tag = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767  # what every MPI must offer
        self._send, self._recv, self._sendrecv = mpi.Send, mpi.Recv, mpi.Sendrecv  # looked up once, not each time

    # ---- payload ----------------------------------------------------------------------------------------------------

    def send(self, array: np.ndarray, dest: int, tag: int) -> None:
        self._send([array, BYTE], dest, tag)

    def recv(self, out: np.ndarray, source: int) -> Arrival:
        status = MPI.Status()
        try:
            self._recv([out, BYTE], source, MPI.ANY_TAG, status)
        except MPI.Exception as error:
            return truncated(error, status)
        return status.Get_tag(), status.Get_count()

    def sendrecv(self, array: np.ndarray, dest: int, tag: int, out: np.ndarray, source: int) -> Arrival:
        status = MPI.Status()
        try:
            self._sendrecv([array, BYTE], dest, tag, [out, BYTE], source, MPI.ANY_TAG, status)
        except MPI.Exception as error:
            return truncated(error, status)
        return status.Get_tag(), status.Get_count()

    def isend(self, array: np.ndarray, dest: int, tag: int) -> MPI.Request:
        return self.mpi.Isend([array, BYTE], dest, tag)

    def irecv(self, out: np.ndarray, source: int) -> MPI.Request:
        return self.mpi.Irecv([out, BYTE], source, MPI.ANY_TAG)

    def wait(self, handle: MPI.Request) -> Arrival:
        status = MPI.Status()
        try:
            handle.Wait(status)
        except MPI.Exception as error:
            return truncated(error, status)
        return status.Get_tag(), status.Get_count()

    def done(self, handle: MPI.Request) -> bool:
        return handle.Get_status()

    def unfinished(self, handles: list[MPI.Request]) -> list[MPI.Request]:
        return [handle for handle in handles if not handle.Test()]

    def probe(self) -> int | None:
        status = MPI.Status()
        return status.Get_source() if self.mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status) else None

    # ---- groups -----------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        self._control.Barrier()

    def split(self, color: int, key: int) -> "MPIPort":
        return type(self)(self.mpi.Split(color, key))

    # ---- control ----------------------------------------------------------------------------------------------------

    def send_control(self, message: bytes, dest: int) -> None:
        self._control.Send([message, BYTE], dest)

    def recv_control(self, source: int) -> bytearray:
        status, looks = MPI.Status(), 0
        while (matched := self._control.Improbe(source, 0, status)) is None:
            if (looks := looks + 1) < SOON:
                self.pause()
            else:
                time.sleep(NAP)
        return taken(matched, status)

    def pause(self) -> None:
        """Let another rank of this core work before the next look."""
        os.sched_yield()

    # ---- letters: synchronous, so that uncollected ones do not lie in some buffer of MPI until the next job ----------

    def post(self, letter: bytes, dest: int, box: int) -> MPI.Request:
        return self._control.Issend([letter, BYTE], dest, 2 * box + 2)  # control's own tag is 0

    def collect(self, box: int) -> tuple[int, bytearray] | None:
        status = MPI.Status()
        matched = self._control.Improbe(MPI.ANY_SOURCE, 2 * box + 2, status)
        return (status.Get_source(), taken(matched, status)) if matched else None

    def enclose(self, array: np.ndarray, dest: int, box: int) -> MPI.Request:
        return self._control.Issend([array, BYTE], dest, 2 * box + 3)

    def extract(self, out: np.ndarray, source: int, box: int) -> MPI.Request:
        return self._control.Irecv([out, BYTE], source, 2 * box + 3)


class CrowdedPort(MPIPort):
    """The same for many ranks per core, where MPI's own waiting occupies the core for too long. On 2 cores, a ZeRO-3
    step takes half the time with 16 ranks and a third with 64; with 4 ranks it would take a little longer."""

    def send(self, array: np.ndarray, dest: int, tag: int) -> None:
        self.wait(self.isend(array, dest, tag))

    def recv(self, out: np.ndarray, source: int) -> Arrival:
        return self.wait(self.irecv(out, source))

    def sendrecv(self, array: np.ndarray, dest: int, tag: int, out: np.ndarray, source: int) -> Arrival:
        receive, send = self.irecv(out, source), self.isend(array, dest, tag)
        arrival = self.wait(receive)
        self.wait(send)
        return arrival

    def barrier(self) -> None:
        self.wait(self._control.Ibarrier())

    def split(self, color: int, key: int) -> MPIPort:
        self.barrier()  # the rank that comes first waits here, not in MPI
        return super().split(color, key)

    def pause(self) -> None:
        """Sleep, so that polling takes only part of the core: with yields alone, 16 ranks take 1.5 times as long."""
        time.sleep(LOOK * CROWD)

    def wait(self, handle: MPI.Request) -> Arrival:
        status = MPI.Status()
        try:
            while not handle.Test(status):
                self.pause()
        except MPI.Exception as error:
            return truncated(error, status)
        return status.Get_tag(), status.Get_count()


def truncated(error: MPI.Exception, status: MPI.Status) -> Arrival:
    """The arrival of a message too long for its array; raises other errors. MPI does not say how long it was."""
    if error.Get_error_class() != MPI.ERR_TRUNCATE:
        raise error
    return status.Get_tag(), TOO_LONG


def taken(matched: MPI.Message, status: MPI.Status) -> bytearray:
    """Receive a message that a probe has found."""
    message = bytearray(status.Get_count())
    matched.Recv([message, BYTE])
    return message


class Progress(threading.Thread):
    """Moves messages while a rank computes: MPI does so only when it is called, and between hosts a long message needs
    many calls. On one machine most messages are there when they have been started, so there it is not needed."""

    def __init__(self, comm: Comm) -> None:
        super().__init__(daemon=True)
        self.ledger, self.left = comm.ledger, threading.Event()
        self.needed = environment.local_ranks() < comm.size and MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def run(self) -> None:
        while self.needed and not self.left.wait(POLL):
            if self.ledger.open_requests and self.ledger.waiting is None:
                MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def end(self) -> None:
        """Return when it calls MPI no more."""
        self.left.set()
        self.join()


def world(ledger: Ledger | None = None) -> Comm:
    """The communicator of all ranks that mpirun started."""
    port = CrowdedPort if CROWD > 2 or interface.HOSTS in os.environ else MPIPort
    comm = Comm(port(MPI.COMM_WORLD), ledger)
    if environment.local_ranks() < comm.size:
        comm.ledger.host_of = hosts()
    return comm


def hosts() -> list[int]:
    """The host of each rank: the first rank with which it shares memory."""
    shared = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    return MPI.COMM_WORLD.allgather(shared.allreduce(MPI.COMM_WORLD.rank, MPI.MIN))
