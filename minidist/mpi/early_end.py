"""The end of a job whose MPI has not started on every rank.

This module loads no MPI, and keeps to the syntax of Python 3.8.
"""

from __future__ import annotations

import fcntl
import os
import termios
import time
from contextlib import suppress
from typing import NoReturn

from minidist.mpi import environment

INTERRUPTED = 130  # as a shell reports an interrupted command


def end_job(line: str, status: int) -> NoReturn:
    """Say so, and end all ranks of the job and this process with it: ranks inside MPI's Init would wait for this one
    for ever."""
    say_last(line)
    abort(status)


def say_last(line: str) -> None:
    """Return when mpirun has it. The first rank of a machine speaks for all, if it comes here too."""
    if environment.local_rank() > 0:
        time.sleep(0.5)
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())
    wait_until_read(2)
    time.sleep(0.1)  # until mpirun has it from its process here


def abort(status: int) -> NoReturn:
    """End the job with this status, and this process."""
    with suppress(KeyError, OSError):  # as MPI_Abort would say it to MPICH's mpirun
        os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={status}\n".encode())
        time.sleep(5)
    os._exit(status)


def wait_until_read(pipe: int) -> None:
    """mpirun reads what the ranks print through pipes, and loses what is still in one of them when a job is aborted."""
    unread, give_up = bytearray(4), time.monotonic() + 0.3
    with suppress(OSError):  # what is no pipe may know no FIONREAD, and loses nothing
        while time.monotonic() < give_up:
            fcntl.ioctl(pipe, termios.FIONREAD, unread)
            if not any(unread):
                return
            time.sleep(0.001)
