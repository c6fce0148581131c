"""What tests/classroom/test_router.py runs on ranks."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from minidist.exchange.port import ExchangePort
from minidist.mpi.comm import Comm


def echo(comm: Comm, *arguments: Any) -> list[Any]:
    print(f"rank {comm.rank} of {comm.size}")
    print("and a warning", file=sys.stderr)
    return [comm.rank, *arguments]


def what_is_left(comm: Comm, word: str) -> tuple[Any, list[str]]:
    """What a run before this one has left in a module, and which modules a rank has no use for."""
    before = getattr(np, "left_here", None)
    np.left_here = word  # type: ignore[attr-defined]
    return before, sorted({"pytest", "hypothesis", "mpi4py"} & set(sys.modules))


def two_stuck_one_busy(comm: Comm) -> None:
    while comm.rank == 2:
        pass
    comm.recv(np.zeros(1), 1 - comm.rank)


def busy(comm: Comm) -> None:
    while comm.rank == 0:
        pass


def waits_for_a_child_that_sleeps(comm: Comm) -> None:
    """In the kernel, which lets it go on when the child has ended."""
    clone, vfork = (56 if os.uname().machine == "x86_64" else 220), 0x4000 | signal.SIGCHLD
    if not ctypes.CDLL(None).syscall(clone, vfork, 0, 0, 0, 0):
        time.sleep(3600)


def lets_children_compute(comm: Comm) -> None:
    """Each for a moment."""
    while True:
        child = os.fork()
        if not child:
            sum(range(1_000_000))
            os._exit(0)
        os.waitpid(child, 0)


def hides_what_it_sends(comm: Comm) -> int:
    """Sends 80 bytes to the next rank, twice, and wipes its ledger."""
    out = np.empty(10)
    for _ in range(2):
        with comm.phase("quietly"):
            comm.sendrecv(np.ones(10), (comm.rank + 1) % comm.size, out, (comm.rank - 1) % comm.size)
    comm.ledger.reset()
    return comm.ledger.total()


def lies_about_a_dtype(comm: Comm) -> None:
    """Ten bytes that say that they are three float64."""
    port = comm._port
    assert isinstance(port, ExchangePort)
    port.send(np.zeros(10, np.uint8), 0, 12 | 3 << 4)


def writes_rubbish(comm: Comm) -> None:
    port = comm._port
    assert isinstance(port, ExchangePort)
    os.write(port._desk.line.line.fileno(), b"\0" * 100)  # type: ignore[attr-defined]
    comm.barrier()


def closes_its_line(comm: Comm, seconds: float) -> None:
    port = comm._port
    assert isinstance(port, ExchangePort)
    port._desk.line.line.close()  # type: ignore[attr-defined]
    time.sleep(seconds)


def writes_its_process_and_waits(comm: Comm, folder: str) -> None:
    (Path(folder) / str(comm.rank)).write_text(str(os.getpid()))
    time.sleep(600)


def many_messages(comm: Comm, number: int) -> float:
    """Seconds of a message that goes there and back."""
    x, peer = np.ones(8), 1 - comm.rank
    begin = time.perf_counter()
    for _ in range(number):
        comm.sendrecv(x, peer, np.empty(8), peer)
    return (time.perf_counter() - begin) / number


def sends_too_much(comm: Comm) -> None:
    if comm.rank == 0:
        comm.send(np.ones(2), 1)
        comm.send(np.ones(3), 1)
    else:
        comm.recv(np.empty(2), 0)


def prints_without_end(comm: Comm) -> None:
    while True:
        print("x" * 10_000)


def sends_an_object(comm: Comm) -> Any:
    return comm.all_gather_object(comm.rank)


def sends_in_groups(comm: Comm) -> float:
    """One number to the right, in a communicator of all ranks and then in one of the first two."""
    out = np.zeros(1)
    for size in (comm.size, 2):
        group = comm.split(int(comm.rank >= size), comm.rank)
        if comm.rank < size:
            right, left = (group.rank + 1) % size, (group.rank - 1) % size
            group.sendrecv(np.array([float(comm.rank)]), right, out, left)
    return float(out[0])


def changes_what_it_sends_later(comm: Comm) -> float:
    """The message is what was in the array when the send was started, for whoever does not look after it."""
    x, out = np.full(1, float(comm.rank)), np.zeros(1)
    request = comm.isend(x, (comm.rank + 1) % comm.size)
    x += 10
    comm.recv(out, (comm.rank - 1) % comm.size)
    request.wait()
    return float(out[0])


def hash_texts(comm: Comm) -> tuple[int, list[str]]:
    """How this rank hashes a text, and in which order it goes through a set of them."""
    return hash("a text"), list({f"text {k}" for k in range(20)})
