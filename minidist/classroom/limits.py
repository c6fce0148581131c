"""What a rank may use, whatever it runs: memory, processor time, files, processes. The kernel sees to it.

Linux enforces all of it. macOS has no limit on the address space that works, and no /proc: there the rest holds.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MEMORY = 2 << 30  # bytes of address space beyond what a rank has when it starts
FILE = 64 << 20  # bytes of a file
FILES = 128  # open at a time
PROCESSES = 32  # of its user: counts where the rank has a user of its own
PR_SET_CHILD_SUBREAPER = 36


def set_limits(seconds: float, own_user: bool) -> None:
    """For this process, for good: a hard limit cannot be raised again without privileges."""
    cpu = max(1, round(seconds))
    wanted = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),  # at the first a signal, at the second the end
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
    """Let this process have so many bytes of memory more than it has now, for good; whether that can be."""
    now = address_space()
    if not now:
        return False
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + nbytes if hard == resource.RLIM_INFINITY else min(now + nbytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return True


def address_space() -> int:
    """Bytes that this process has mapped; 0 where nobody tells."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[0]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def state(process: int) -> str:
    """What the kernel says of a process: R if it runs or could, S if it sleeps, ...; "" where nobody tells."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def adopt_orphans() -> None:
    """Become the parent of whatever descendant loses its own, so that `end_orphans` finds it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """End all descendants of this process, and return when there are none."""
    if os.getpid() == 1:  # of a process namespace, in which all others descend from it
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
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]
