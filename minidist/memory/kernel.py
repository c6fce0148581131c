"""What the kernel says of this process, in /proc: what it reads and writes by system calls, and what is resident.

Nothing of it is counted by this project. Where there is no such /proc (it is Linux's), OSError is raised.
"""

import re
from pathlib import Path
from typing import NamedTuple

AUDIT = "MINIDIST_AUDIT_FILES"  # names a folder in which workers of MapReduce leave both accounts: claims/accounts.py


class Kernel:
    """Bytes that this process has read and written so far, or one thread of it: files, pipes, terminals, whatever it
    was. What is written through a map is no system call, and not among them.

    To look is to read as well: `looked` bytes so far.
    """

    def __init__(self) -> None:
        self.looked = 0

    def io(self, thread: int | None = None) -> tuple[int, int]:
        """Read and written, before this look. thread: its id, the kernel's; None: all of them together."""
        text = Path("/proc/self/io" if thread is None else f"/proc/self/task/{thread}/io").read_text()
        self.looked += len(text)
        fields = dict(line.split(": ") for line in text.splitlines())
        return int(fields["rchar"]), int(fields["wchar"])


class Pages(NamedTuple):
    """Bytes of this process that are in memory now, and the most that there were since `forget_most`."""

    now: int
    most: int
    mapped: int  # of those now: parts of files, which code is, and memory that processes share, such as MPI's


def pages() -> Pages:
    text = Path("/proc/self/status").read_text()
    sizes = {name: 1024 * int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    try:
        return Pages(sizes["VmRSS"], sizes["VmHWM"], sizes["RssFile"] + sizes["RssShmem"])
    except KeyError as missing:
        raise OSError(f"/proc/self/status says nothing of {missing}") from None


def forget_most() -> None:
    """From here on the most is counted again."""
    Path("/proc/self/clear_refs").write_text("5")  # man 5 proc_pid_clear_refs
