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
from typing import NamedTuple

MEMORY = 2 << 30  # bytes: address space that a rank may add after its start; memory of all ranks together
RESERVE = 1 << 29  # more bytes for a cgroup, so that the router notices first and can say what has happened
TOGETHER = 64  # processes and threads of all ranks together
HELD = 16 << 20  # bytes that the kernel may hold for a process, in full pipes and in its list of mappings
SIGNALS = 128  # that may wait, with timers
NICE = 5  # how far other work goes first
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
    if sys.platform == "linux":
        wanted[resource.RLIMIT_SIGPENDING] = (SIGNALS, SIGNALS)
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


def lower_priority() -> None:
    """Let other work on this machine go first. Linux gives each session a priority, in addition to its processes'."""
    os.nice(NICE)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))


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
    return [int(child) for text in _read_of_threads(process, "children") for child in text.split()]


def _read_of_threads(process: int, name: str) -> list[str]:
    """A file of the kernel's on each thread of a process."""
    with suppress(OSError):
        return [_read(f"/proc/{process}/task/{thread}/{name}") for thread in os.listdir(f"/proc/{process}/task")]
    return []


def _read(file: str) -> str:
    """A file of the kernel's, "" if there is none. Paths and text files take three times as long, many times a second.
    A process's name, which stands there, is any bytes."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    except OSError:  # the process has ended since
        return ""
    finally:
        os.close(descriptor)


# ---- of all ranks together -------------------------------------------------------------------------------------------


class Use(NamedTuple):
    """What processes use."""

    nbytes: int  # of memory; what they share counts for each
    number: int  # of processes and threads
    seconds: float  # of processor time, with that of descendants that have ended


def look_at(processes: Sequence[int]) -> Use:
    """What these processes and their descendants use together; zeros if the system does not say."""
    each = [use_of(process) for process in descendants(processes)]
    return Use(*map(sum, zip(*each, strict=True))) if each else Use(0, 0, 0)


def descendants(processes: Sequence[int]) -> list[int]:
    """These processes and all that descend from them."""
    found = list(processes)
    for process in found:  # the list grows while it is read
        found += _children(process)
    return found


def use_of(process: int) -> Use:
    """What one process uses. Its memory is what is in no file, where it may also be swapped out, with the tables of its
    pages and what else the kernel may hold for it."""
    said = dict(re.findall(r"\n(RssAnon|RssShmem|VmSwap|VmPTE|Threads):\s+(\d+)", _read(f"/proc/{process}/status")))
    threads = int(said.pop("Threads", 0))
    nbytes = sum(map(int, said.values())) << 10
    return Use(nbytes + HELD if nbytes else 0, threads, processor_time(process))


def processor_time(process: int) -> float:
    """Seconds that a process and those of its descendants that have ended have used."""
    fields = _read(f"/proc/{process}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def waiting_time(process: int) -> float:
    """Seconds for which the threads of a process have waited for a processor; 0 if the system does not say."""
    said = [text.split() for text in _read_of_threads(process, "schedstat")]
    return sum(int(fields[1]) for fields in said if len(fields) > 1) / 1e9


def is_short_of_memory() -> bool:
    """Whether this machine has hardly any memory left: that says nothing about who has it."""
    said = dict(re.findall(r"(MemTotal|MemAvailable):\s+(\d+)", _read("/proc/meminfo")))
    return len(said) == 2 and int(said["MemAvailable"]) << 10 < min(int(said["MemTotal"]) << 6, RESERVE)


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
