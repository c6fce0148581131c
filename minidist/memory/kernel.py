"""The kernel's account of this process, in /proc: what it reads and writes by system calls, and what is resident.

The project itself counts none of this. Without Linux's /proc, OSError is raised.
"""

import re
from pathlib import Path
from typing import NamedTuple

PROCESS = "/proc/self"
AUDIT = "MINIDIST_AUDIT_FILES"  # names a folder into which MapReduce's workers write both accounts: claims/accounts.py


class Kernel:
    """Bytes that this process, or one of its threads, has read and written so far: files, pipes, terminals, anything.
    Writes through a memory map are not system calls, and not included.

    Asking the kernel is reading, too: `looked` bytes so far.
    """

    def __init__(self) -> None:
        self.looked = 0

    def io(self, thread: int | None = None) -> tuple[int, int]:
        """(bytes read, bytes written) before this call. thread: the kernel's id; None: all threads together."""
        text = Path(PROCESS, "io" if thread is None else f"task/{thread}/io").read_text()
        self.looked += len(text)
        fields = dict(line.split(": ") for line in text.splitlines())
        return int(fields["rchar"]), int(fields["wchar"])


class Pages(NamedTuple):
    """Resident bytes of this process: now, and the most since `forget_most`."""

    now: int
    most: int
    mapped: int  # of those now: parts of files, such as code, and memory that processes share, such as MPI's


def pages() -> Pages:
    text = Path(PROCESS, "status").read_text()
    sizes = {name: 1024 * int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    try:
        return Pages(sizes["VmRSS"], sizes["VmHWM"], sizes["RssFile"] + sizes["RssShmem"])
    except KeyError as missing:
        raise OSError(f"{PROCESS}/status says nothing of {missing}") from None


def forget_most() -> None:
    """Let the kernel count the most from now on."""
    Path(PROCESS, "clear_refs").write_text("5")  # man 5 proc_pid_clear_refs
