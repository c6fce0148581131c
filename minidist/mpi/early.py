"""The end of a job whose MPI has not started on every rank.

This module loads no MPI, and keeps to the syntax of Python 3.8.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130  # as a shell reports an interrupted command


def end_job(line: str, status: int) -> NoReturn:
    """Say so, and end all ranks of the job and this process with it: ranks inside MPI's Init would wait for this one
    for ever. The first rank of a machine speaks for all, if it comes here too."""
    place = os.environ.get("MPI_LOCALRANKID") or os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or "0"
    if place != "0":
        time.sleep(0.5)
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())
    time.sleep(0.1)  # mpirun loses what it has not read when the job is aborted
    with suppress(KeyError, OSError):  # as MPI_Abort would say it to MPICH's mpirun
        os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={status}\n".encode())
        time.sleep(5)
    os._exit(status)
