"""What the kernel says of this process, in /proc: what it reads and writes by system calls, and what is resident.

Nothing of it is counted by this project. Where there is no such /proc (it is Linux's), OSError is raised.
"""

import re
from pathlib import Path

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


def resident() -> int:
    """Bytes of this process's pages that are in memory now."""
    return _status("VmRSS")


def most_resident() -> int:
    """The most that there ever were, or have been since `forget_most`."""
    return _status("VmHWM")


def forget_most() -> None:
    """From here on the most is counted again."""
    Path("/proc/self/clear_refs").write_text("5")  # man 5 proc_pid_clear_refs


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if not found:
        raise OSError(f"/proc/self/status says nothing of {name}")
    return 1024 * int(found[1])
