"""/dev/shm, through which ranks of one machine talk: that a job leaves nothing there, and that it finds room.

MPICH makes a segment of 1 MB for each rank in Init and takes its name away in Finalize. A job that ends otherwise would
leave it for ever, and a container's /dev/shm has 64 MB. What has no name goes with the last process that has it open,
so the name is taken away as soon as every rank has it open (over_mpi.py). Before that, whoever ends a rank looks first
at what it has open, and removes that afterwards: never by a pattern, which would hit other jobs. Open MPI's files are
left alone: it opens some of them late, and removes them itself.

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

FOLDER = "/dev/shm"
OWN, UCX = f"{FOLDER}/mpich_shm_", f"{FOLDER}/ucx_shm_"  # how segments of MPICH and of its transport begin
# What a job of the package mpich takes, counted with 1 to 16 ranks: 1.06 MB in MPICH's segment and 4.33 MB in those of
# its transport, UCX, for each; and with less to spare than another 6.3 MB, UCX sometimes crashes.
SHARE, SPARE = 5_400_000, 6_300_000


def segments(process: int | str = "self", beginning: str = OWN) -> set[str]:
    """The segments, MPICH's unless told otherwise, that a process has open and that still have a name."""
    seen = []
    with suppress(OSError):  # it has ended, or there is no /proc
        seen = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
        for file in os.scandir(f"/proc/{process}/fd"):  # opened, but perhaps not mapped yet
            with suppress(OSError):
                seen.append(os.readlink(file.path))
    paths = (line[line.index(beginning) :] for line in seen if beginning in line)
    return {path for path in paths if not path.endswith(" (deleted)")}


def of(process: int | str) -> set[str]:
    """All the segments that a process has open, which is about to be killed."""
    return segments(process) | segments(process, UCX)


def unlink() -> None:
    """Take away the name of this job's segment. To be called when every rank has it open; all may call it."""
    remove(segments())


def files(user: int | None = None) -> dict[str, int]:
    """{path: bytes} of what lies in /dev/shm: of a user, or all."""
    found = {}
    for file in os.scandir(FOLDER):
        with suppress(OSError):  # it is gone
            status = file.stat(follow_symlinks=False)
            if user in (None, status.st_uid):
                found[file.path] = status.st_blocks * 512
    return found


def orphans() -> dict[str, int]:
    """{path: bytes} of this user's segments of MPICH and UCX that no process has open, as far as one can see from here:
    another container may share them."""
    mine = {path: size for path, size in files(os.getuid()).items() if path.startswith((OWN, UCX))}
    for process in filter(str.isdigit, os.listdir("/proc")) if mine else ():
        for path in segments(process, f"{FOLDER}/"):
            mine.pop(path, None)
    return mine


def remove(paths: Iterable[str]) -> None:
    """Remove these segments, where they are still there."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def stopped(groups: Iterable[int]) -> set[str]:
    """Stop the processes of these groups, which are about to be killed, and return the segments that they have open."""
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
    """(bytes in all, bytes that are free) in /dev/shm. OSError if there is none."""
    found = os.statvfs(FOLDER)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def is_packaged_mpich() -> bool:
    """Whether ranks use the MPICH that pip installs, as it is, of which we know what it takes."""
    files = [Path(sys.prefix, "bin", "hydra_pmi_proxy"), Path(sys.prefix, "lib", "libmpi.so.12")]
    return all(file.exists() for file in files) and not {"MPI4PY_LIBMPI", "UCX_TLS"} & set(os.environ)


def room(ranks: int) -> int:
    """Bytes that so many ranks of the packaged MPICH need."""
    return ranks * SHARE + (SPARE if ranks > 1 else 0)


def shortage(ranks: int, share: int | None = None) -> str:
    """Why so many ranks find no room, in a sentence; "" if they do, or if we cannot know.

    share: bytes that must be free now, if the others may have taken their part already; else what all take.
    """
    needed = room(ranks)
    with suppress(OSError):
        total, free = space()
        if is_packaged_mpich() and (total < needed or free < (share or needed)):
            megabytes = f"has {free / 1e6:.0f} MB free of {total / 1e6:.0f}, and {needed / 1e6:.0f} are needed"
            return f"{FOLDER} {megabytes} for {ranks} rank{'s' * (ranks > 1)}: python -m minidist doctor says more"
    return ""


def refuse() -> None:
    """As a rank that is about to start MPI: end with a line and status 2 if it will find no room."""
    try:
        ranks = environment.local_ranks()
        reason = shortage(ranks, SHARE) if environment.rank() is not None else ""
    except UsageError as error:
        reason = str(error)
    if reason:
        end_job(f"minidist: error: {reason}", 2)
