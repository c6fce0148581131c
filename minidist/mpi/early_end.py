"""How a job ends if MPI has not started on every rank.

This module loads no MPI, and keeps to the syntax of Python 3.8.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import termios
import time
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130  # as a shell reports an interrupted command


def end_job(line: str, status: int) -> NoReturn:
    """Print the line, and end all ranks of the job, including this process: ranks inside MPI's Init would wait for this
    one forever."""
    say_last(line)
    abort(status)


def say_last(line: str) -> None:
    """Return when mpirun has the line. The first rank of a machine to come here speaks for all that do."""
    be_first_to_fail()
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())
    wait_until_read(2)
    time.sleep(0.1)  # until mpirun has got it from its process on this machine


def be_first_to_fail() -> None:
    """If several ranks fail at the same moment, return on one of them; the others are ended while they wait here.

    The lock is on a folder that every rank of this machine can see. It is never released explicitly: it goes when Abort
    ends this process, usually 0.2 s later, and may go before Abort has ended the others. So the second one waits,
    even when the lock is free again. A rank of another job that fails just then is delayed, not silenced.
    """
    try:
        folder = os.open(tempfile.gettempdir(), os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        time.sleep(3)


def abort(status: int) -> NoReturn:
    """End the job with this status, and this process."""
    with suppress(KeyError, OSError):  # as MPI_Abort would tell MPICH's mpirun
        os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={status}\n".encode())
        time.sleep(5)
    os._exit(status)


def wait_until_read(pipe: int) -> None:
    """mpirun reads the ranks' output through pipes, and loses what is still in one of them when a job is aborted."""
    unread, give_up = bytearray(4), time.monotonic() + 0.3
    with suppress(OSError):  # a file that is no pipe may lack FIONREAD, and loses nothing
        while time.monotonic() < give_up:
            fcntl.ioctl(pipe, termios.FIONREAD, unread)
            if not any(unread):
                return
            time.sleep(0.001)
