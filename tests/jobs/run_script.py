"""A chapter in small: `mpirun -n 3 python run_script.py MODE [RANK]`. Tests start it without minidist's launcher."""

import os
import sys

import numpy as np

from minidist import Finished, UsageError
from minidist.mpi.comm import Comm
from minidist.mpi.run import run


def prepare(comm: Comm) -> str:
    mode = sys.argv[1]
    here = len(sys.argv) < 3 or int(sys.argv[2]) == comm.rank
    if mode == "usage" and here:
        raise UsageError("no such model: tiny;\nuse small")
    if mode == "help" and here:
        raise Finished("usage: run_script.py MODE")
    if mode == "broken prepare" and here:
        raise LookupError("a mistake in prepare")
    return mode


def main(comm: Comm, mode: str) -> int | None:
    print(f"rank {comm.rank} in main, process {os.getpid()} ", flush=True)
    here = int(sys.argv[2]) == comm.rank if len(sys.argv) == 3 else True
    if mode == "late usage":
        raise UsageError("no such file: x.json")
    if mode == "raise" and here:
        raise ValueError("a mistake in main")
    if mode == "sys.exit" and here:
        sys.exit(0)
    if mode == "drop" and here:
        comm.irecv(np.zeros(1), comm.rank)
    if mode == "wait":
        comm.recv(np.zeros(1), comm.rank)
    comm.barrier()
    return 1 if mode == "claim" else None


if __name__ == "__main__":
    run(main, prepare)
