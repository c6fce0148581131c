"""/dev/shm, through which ranks of one machine communicate: a job leaves nothing there, and checks that it has room.

In Init, MPICH makes a segment of 1 MB for each rank; in Finalize, it removes the segment's name. A job that ends in any
other way would leave it forever, and a container's /dev/shm has 64 MB. A file without a name goes with the last process
that has it open, so the name is removed as soon as every rank has the segment open (over_mpi.py). Before that, the code
that ends a rank first notes which segments it has open, and then removes these: never by a pattern, which would hit
other jobs. Open MPI's files are left alone: it opens some of them late, and removes them itself.

This module loads no MPI, and keeps to the syntax of Python 3.8, for the doctor.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Iterable  # noqa: UP035 (Python 3.8's collections.abc.Iterable takes no [...])

from minidist import UsageError
from minidist.mpi import environment
from minidist.mpi.early_end import end_job
from minidist.system import unix

FOLDER = "/dev/shm"
OWN, UCX = f"{FOLDER}/mpich_shm_", f"{FOLDER}/ucx_shm_"  # prefixes of segments: MPICH's, its transport's
# What a job of the package mpich takes, counted with 1 to 16 ranks. Each rank takes 1.06 MB in MPICH's segment and 4.33
# MB in those of its transport, UCX. With less than another 6.3 MB to spare, UCX sometimes crashes.
OF_MPICH, OF_UCX = 1_060_000, 4_340_000
SHARE, SPARE = OF_MPICH + OF_UCX, 6_300_000
LEAST_FILES = 48  # that a rank opens at a time, counted with 8 ranks: with 40, MPI ended them with messages of its own


def segments(process: int | str = "self", beginning: str = OWN) -> set[str]:
    """The segments, by default MPICH's, that a process has open and that still have a name."""
    seen = []
    with suppress(OSError):  # it has ended, or there is no /proc
        seen = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
        for file in os.scandir(f"/proc/{process}/fd"):  # opened, but perhaps not mapped yet
            with suppress(OSError):
                seen.append(os.readlink(file.path))
    paths = (line[line.index(beginning) :] for line in seen if beginning in line)
    return {path for path in paths if not path.endswith(" (deleted)")}


def of(process: int | str) -> set[str]:
    """All segments, MPICH's and UCX's, that a process has open: to be removed once it is killed."""
    return segments(process) | segments(process, UCX)


def unlink() -> None:
    """Remove the name of this job's segment. Call it when every rank has it open; all may call it."""
    remove(segments())


def files(user: int | None = None, since: float = 0.0) -> dict[str, int]:
    """{path: bytes} of a user's files in /dev/shm; None: of all users'. since: of those changed since then."""
    found = {}
    for file in os.scandir(FOLDER) if os.path.isdir(FOLDER) else ():
        with suppress(OSError):  # it is gone
            status = file.stat(follow_symlinks=False)
            if user in (None, status.st_uid) and status.st_ctime >= since:
                found[file.path] = status.st_blocks * 512
    return found


def orphans(since: float = 0.0) -> dict[str, int]:
    """{path: bytes} of this user's segments of MPICH and UCX that no visible process has open. Processes of
    other containers that share /dev/shm are not visible. since: as for `files`."""
    mine = {path: size for path, size in files(os.getuid(), since).items() if path.startswith((OWN, UCX))}
    for process in filter(str.isdigit, os.listdir("/proc")) if mine else ():
        for path in segments(process, f"{FOLDER}/"):
            mine.pop(path, None)
    return mine


def remove(paths: Iterable[str]) -> None:
    """Remove these segments, if they still exist."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def stopped(groups: Iterable[int]) -> set[str]:
    """Stop the processes of these groups, and return their open segments. They are about to be killed."""
    groups, found = {group for group in groups if group > 1}, set()
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGSTOP)
    for process in filter(str.isdigit, os.listdir("/proc")) if os.path.isdir("/proc/self") else ():
        with suppress(ProcessLookupError):
            if os.getpgid(int(process)) in groups:
                found |= of(process)
    return found


def space() -> tuple[int, int]:
    """(total bytes, free bytes) of /dev/shm. Raises OSError if it does not exist."""
    found = os.statvfs(FOLDER)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def is_packaged_mpich() -> bool:
    """Whether ranks use the MPICH that pip installs, unchanged: only its needs are known."""
    files = [Path(sys.prefix, "bin", "hydra_pmi_proxy"), Path(sys.prefix, "lib", "libmpi.so.12")]
    return all(file.exists() for file in files) and not {"MPI4PY_LIBMPI", "UCX_TLS"} & set(os.environ)


def room(ranks: int) -> int:
    """Bytes that `ranks` ranks of the packaged MPICH need."""
    return ranks * SHARE + (SPARE if ranks > 1 else 0)


def shortage(ranks: int, share: int | None = None) -> str:
    """Why `ranks` ranks do not fit, in a sentence; "" if they do, or if that is unknown.

    share: bytes that must be free now, if other ranks may already have taken their part; by default what all need.
    """
    needed = room(ranks)
    with suppress(OSError):
        total, free = space()
        if is_packaged_mpich() and (total < needed or free < (share or needed)):
            megabytes = f"has {free / 1e6:.0f} MB free of {total / 1e6:.0f}, and {needed / 1e6:.0f} are needed"
            return f"{FOLDER} {megabytes} for {ranks} rank{'s' * (ranks > 1)}: python -m minidist doctor says more"
    return ""


def limits(ranks: int) -> str:
    """Which limit of the shell is too low for MPI, in a sentence; "" if none is."""
    files, size = unix.limit("RLIMIT_NOFILE"), unix.limit("RLIMIT_FSIZE")
    if files < LEAST_FILES:
        return f"ulimit -n allows {files} open files, and MPI needs {LEAST_FILES}"
    largest = max(OF_UCX, ranks * OF_MPICH)
    if is_packaged_mpich() and size < largest:
        return f"ulimit -f allows files of {size / 1e6:.1f} MB, and MPI needs {largest / 1e6:.1f} MB in {FOLDER}"
    return ""


def refuse() -> None:
    """End the job with a line and status 2 if there is no room. A rank calls this before it starts MPI."""
    try:
        ranks = environment.local_ranks()
        reason = limits(ranks) or (shortage(ranks, SHARE) if environment.rank() is not None else "")
    except UsageError as error:
        reason = str(error)
    if reason:
        end_job(f"minidist: error: {reason}", 2)
