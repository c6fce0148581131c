"""What tests/mpi/test_watchdog.py runs: a rank that others wait for, for long."""

import os
import signal
import sys
import time

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


if __name__ == "__main__":
    watchdog.LONG = float(sys.argv[1])
    run(prepare=lambda comm: None, main=wait_for_one)
