"""How a job ends if MPI has not started on every rank.

This module loads no MPI, and keeps to the syntax of Python 3.8.
"""

from __future__ import annotations

import functools
import os
import time
from contextlib import suppress
from typing import NoReturn

from minidist.system import processes, unix

INTERRUPTED = 130  # as a shell reports an interrupted command
WAITS, WAIT = 2, 6.0  # how often a rank waits, and how many seconds, for others that fail at the same moment


@functools.lru_cache(None)
def launcher() -> tuple[int, int]:
    """(the process that has started this one, a descriptor of its standard error output or -1), as they were at the
    first call: call it early, while that process lives. Under mpirun, mpirun reads this output."""
    process = os.getppid()
    with suppress(OSError):
        return process, os.open(f"/proc/{process}/fd/2", os.O_WRONLY | os.O_APPEND | unix.NO_WAIT)
    return process, -1


def end_job(line: str, status: int) -> NoReturn:
    """Print the line, and end all ranks of the job, including this process: ranks inside MPI's Init would wait for this
    one forever."""
    processes.undo()
    say_last(line)
    abort(status)


def say_last(line: str) -> None:
    """Print the line; returns when mpirun has it. Of several ranks of a machine, the first one here prints for all."""
    be_first_to_fail()
    say_as_first(line)


def say_as_first(line: str, pipe: int = 2) -> None:
    """The same, for a rank that is the first to fail."""
    with suppress(OSError):
        os.write(pipe, f"{line}\n".encode())
    wait_until_read(pipe)
    time.sleep(0.1)  # until mpirun has got it from its process on this machine


@functools.lru_cache(None)
def common_folder() -> int:
    """A descriptor of a folder that every rank of this machine can see: call it early, while there are descriptors."""
    return unix.open_folder(next(filter(os.path.isdir, (os.environ.get("TMPDIR", ""), "/tmp", "."))))


def be_first_to_fail() -> None:
    """If several ranks fail at the same moment, return on one of them; the others are ended while they wait here.

    The lock is on a folder that every rank of this machine can see. Nothing is written into it: a rank that is ended at
    that moment would leave it there. The system releases the lock when Abort ends this process, usually 0.2 s later.
    Abort may end the others only after that, so they wait even when the lock is free again. If it was a rank of another
    job that failed just then, they are not ended, and one of them has the lock next: its message comes later, but it
    comes, even if the lock is never free.
    """
    for _ in range(WAITS):
        try:
            unix.lock(common_folder())
            return
        except OSError:
            time.sleep(WAIT)


def abort(status: int) -> NoReturn:
    """End the job with this status, and this process."""
    with suppress(KeyError, OSError):  # as MPI_Abort would tell MPICH's mpirun
        os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={status}\n".encode())
        time.sleep(5)
    os._exit(status)


def wait_until_read(pipe: int) -> None:
    """Wait until mpirun has read the output in this pipe, 0.3 s at most. An abort would lose the unread part."""
    give_up = time.monotonic() + 0.3
    with suppress(OSError):  # a file that is no pipe loses nothing
        while unix.unread(pipe) and time.monotonic() < give_up:
            time.sleep(0.001)
