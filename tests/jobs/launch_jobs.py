"""What tests/launch/test_launch.py runs on ranks: jobs that end well and badly in every way there is."""

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from minidist.mpi.comm import Comm


def echo(comm: Comm, *args: object, **kwargs: object) -> object:
    print(f"out {comm.rank}")
    print(f"err {comm.rank}", file=sys.stderr)
    return comm.rank, comm.size, args, kwargs


def ring_of_messages(comm: Comm, count: int) -> float:
    out = np.empty(count, np.float32)
    with comm.phase("ring"):
        comm.sendrecv(
            np.full(count, comm.rank, np.float32), (comm.rank + 1) % comm.size, out, (comm.rank - 1) % comm.size
        )
    comm.barrier()
    return float(out.sum())


def fail_on_one(comm: Comm, rank: int, how: str) -> None:
    if comm.rank == rank:
        leave(how)
    comm.barrier()


def leave(how: str) -> None:
    print("before the end")
    match how:
        case "raise":
            raise ValueError("this rank fails")
        case "sys.exit(0)":
            sys.exit(0)
        case "sys.exit(3)":
            sys.exit(3)
        case "os._exit(0)":
            os._exit(0)
        case "os._exit(3)":
            os._exit(3)
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case "SIGSEGV":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "SIGRTMIN+3":
            os.kill(os.getpid(), signal.SIGRTMIN + 3)


def return_a_set(comm: Comm) -> object:
    return {1, 2}


def drop_a_request(comm: Comm) -> None:
    if comm.rank == 0:
        comm.irecv(np.empty(3), 1)


def everyone_receives(comm: Comm) -> None:
    comm.recv(np.empty(3), (comm.rank + 1) % comm.size)


def receive_from_finished(comm: Comm) -> None:
    if comm.rank == 0:
        comm.recv(np.empty(3), 1)


def one_loops(comm: Comm) -> None:
    print("before the hang")
    if comm.rank == 1:
        while True:
            pass
    comm.recv(np.empty(3), 1)


def one_is_in_native_code(comm: Comm) -> None:
    print("before the hang")
    if comm.rank == 1:
        sum(range(10**12))
    comm.barrier()


def write_pid_and_wait(comm: Comm, folder: str) -> None:
    """Wait for ever, in a message call or in a loop, with this process's id in a file."""
    with open(f"{folder}/{comm.rank}.unfinished", "w") as file:
        file.write(str(os.getpid()))
    os.replace(file.name, f"{folder}/{comm.rank}")
    comm.barrier()
    while comm.rank == 0:
        time.sleep(1)
    comm.recv(np.empty(3), 0)


def forge_result(comm: Comm) -> None:
    """What a hostile student might do: leave a pickle that runs a command where the launcher reads the result."""
    if comm.rank == 1:

        class Evil:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return print, ("the launcher has run code from a result file",)

        with open(f"{sys.argv[1]}/1/result", "wb") as file:
            np.savez(file, allow_pickle=True, tree=np.array([Evil()], dtype=object))
        os._exit(0)


def print_a_lot(comm: Comm) -> None:
    print("x" * 1_500_000)


def print_without_end(comm: Comm) -> None:
    while True:
        print("x" * 1_000_000)


def environment(comm: Comm, name: str) -> tuple[str | None, str]:
    return os.environ.get(name), os.getcwd()


def answer(comm: Comm, folder: str) -> None:
    """Write N for every file `ask` that appears; receive in vain when it says "hang", fail when it says "fail"."""
    for number in itertools.count():
        ask = Path(folder) / f"ask.{number}"
        while not ask.exists():
            time.sleep(0.01)
        match ask.read_text():
            case "hang":
                everyone_receives(comm)
            case "fail":
                raise ValueError("asked to fail")
        (Path(folder) / f"answer.{number}.{comm.rank}").touch()
