"""What tests/mpi/test_stops.py runs: a rank that computes for long while the other waits for it."""

import time

import numpy as np

from minidist.mpi.comm import Comm
from minidist.mpi.run import run


def compute(comm: Comm, _: None) -> int:
    if comm.rank == 0:
        comm.recv(np.zeros(1), 1)
        return 0
    begin = time.monotonic()
    assert 3**6_000_000 > 0  # one call, which holds the interpreter
    while time.monotonic() - begin < 2.5:
        sum(range(10**6))
    print(f"for {time.monotonic() - begin:.1f} s")
    comm.send(np.zeros(1), 0)
    return 0


if __name__ == "__main__":
    run(prepare=lambda comm: None, main=compute)
