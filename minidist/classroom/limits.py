"""What a rank may use, whatever it runs: memory, processor time, files, processes. The kernel enforces it.

A kernel limit applies to one process. What all ranks and their descendants use together is measured many times a
second (`look_at`). If this process may make a cgroup (version 2), the kernel limits that, too.

Linux enforces all limits. macOS has no working limit on the address space, and no /proc; the other limits hold there.
"""

import ctypes
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MEMORY = 2 << 30  # bytes: address space that a rank may add after its start; memory of all ranks together
RESERVE = 1 << 29  # more bytes for a cgroup, so that the router notices first and can say what has happened
TOGETHER = 96  # processes of all ranks together
FILE = 64 << 20  # bytes of a file
FILES = 128  # open at a time
PROCESSES = 32  # of its user; set only if the rank has a user of its own
PR_SET_CHILD_SUBREAPER = 36


def set_limits(seconds: float, own_user: bool) -> None:
    """Limit this process, for good: a hard limit cannot be raised again without privileges."""
    cpu = max(1, round(seconds))
    wanted = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),  # the first sends a signal, the second ends the process
        resource.RLIMIT_FSIZE: (FILE, FILE),
        resource.RLIMIT_NOFILE: (FILES, FILES),
        resource.RLIMIT_CORE: (0, 0),
    }
    if own_user:
        wanted[resource.RLIMIT_NPROC] = (PROCESSES, PROCESSES)
    for what, (soft, hard) in wanted.items():
        with suppress(ValueError, OSError):  # there may be a lower one already
            resource.setrlimit(what, (soft, hard))
    confine(MEMORY)


def confine(nbytes: int) -> bool:
    """Let this process have at most `nbytes` more memory than now, for good; return whether that is possible."""
    now = address_space()
    if not now:
        return False
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + nbytes if hard == resource.RLIM_INFINITY else min(now + nbytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return True


def address_space() -> int:
    """Bytes that this process has mapped; 0 if the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[0]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def state(process: int) -> str:
    """What the kernel says of a process: R if it runs or could, S if it sleeps, ...; "" if the system does not say."""
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def adopt_orphans() -> None:
    """Become the parent of any descendant that loses its own, so that `end_orphans` finds it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """End all descendants of this process, and return when there are none."""
    if os.getpid() == 1:  # in a process namespace, all others descend from this one
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up:
        for child in _children(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.002)
        except ChildProcessError:
            return


def _children(process: int) -> list[int]:
    """The children of all threads of a process; none if the system does not say."""
    try:
        threads = os.listdir(f"/proc/{process}/task")
        texts = [Path(f"/proc/{process}/task/{thread}/children").read_text() for thread in threads]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]


# ---- of all ranks together -------------------------------------------------------------------------------------------


def look_at(processes: Sequence[int]) -> tuple[int, int]:
    """(bytes of memory, number) of these processes and their descendants. Memory that they share counts for each."""
    found, nbytes = list(processes), 0
    for process in found:  # the list grows while it is read
        found += _children(process)
        nbytes += memory_of(process)
    return nbytes, len(found)


def memory_of(process: int) -> int:
    """Bytes of a process in memory that are in no file; 0 if the system does not say."""
    try:
        status = Path(f"/proc/{process}/status").read_text(errors="replace")  # its name may be any bytes
    except OSError:
        return 0
    return sum(
        int(kilobytes) << 10 for kilobytes in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE)
    )


def make_group(root: Path = Path("/sys/fs/cgroup"), of: Path = Path("/proc/self/cgroup")) -> Path | None:
    """A new, empty cgroup with limits, below the nearest one that permits it; None if none does."""
    try:
        [own] = [line.removeprefix("0::/") for line in of.read_text().splitlines() if line.startswith("0::/")]
    except (OSError, ValueError):
        return None
    for folder in (root / own, *(root / own).parents):
        try:
            if {"memory", "pids"} <= set((folder / "cgroup.subtree_control").read_text().split()):
                group = folder / f"minidist-{os.getpid()}-{time.monotonic_ns()}"
                group.mkdir()
                (group / "memory.max").write_text(str(MEMORY + RESERVE))
                (group / "pids.max").write_text(str(2 * TOGETHER))
                with suppress(OSError):  # there may be no swap
                    (group / "memory.swap.max").write_text("0")
                return group
        except OSError:  # there is none so high up, or it is another user's
            continue
    return None


def join_group(group: Path, process: int) -> None:
    with suppress(OSError):
        (group / "cgroup.procs").write_text(str(process))


def remove_group(group: Path) -> None:
    """Remove a cgroup whose processes have ended."""
    for _ in range(50):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.01)
