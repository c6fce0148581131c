"""What tests/mpi/test_watchdog.py runs: a rank that others wait for, for long or for ever."""

import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np

from minidist.mpi import watchdog
from minidist.mpi.comm import Comm
from minidist.mpi.run import run


def wait_for_one(comm: Comm, _: None) -> int:
    """Rank 1 sleeps until it is told to go on; rank 0 receives from it."""
    if comm.rank == 1:
        print(f"pid {os.getpid()}", flush=True)
        signal.signal(signal.SIGUSR2, lambda *_: None)
        signal.pause()
        comm.send(np.zeros(3), 0)
    elif comm.rank == 0:
        with comm.phase("a phase"):
            comm.recv(np.zeros(3), 1)
    time.sleep(2.0)  # for what is still to be said
    return 0


def have_uneven_batches(comm: Comm, _: None) -> int:
    """Rank 0 has one batch more than the others."""
    with comm.phase("gradients"):
        for _step in range(2 + (comm.rank == 0)):
            CALLS[sys.argv[2]](comm)
    return 0


def exchange(comm: Comm) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.sendrecv(np.zeros(3), right, np.zeros(3), left)


def give(comm: Comm) -> None:
    """A message that is too long for MPI to keep until its receiver asks for it."""
    if comm.rank == 0:
        comm.send(np.zeros(1_000_000), 1)
    elif comm.rank == 1:
        comm.recv(np.zeros(1_000_000), 0)


CALLS: dict[str, Callable[[Comm], object]] = {
    "sendrecv": exchange,
    "send": give,
    "recv (control)": lambda comm: comm.all_gather_object(comm.rank),
    "barrier": Comm.barrier,
}

if __name__ == "__main__":
    watchdog.LONG = float(sys.argv[1])
    run(prepare=lambda comm: None, main=have_uneven_batches if len(sys.argv) > 2 else wait_for_one)
