"""Let the C library keep freed memory for the next array."""

import ctypes
import sys

# Each option's number in glibc's malloc.h, and the bytes that it is set to. 32 MB is the most that all versions accept
# for the second.
OPTIONS = {"M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_MMAP_THRESHOLD": (-3, 32 << 20)}


def keep_freed_memory() -> dict[str, int]:
    """Do not return the memory of dropped arrays to the operating system. Returns the options that were set, in bytes.

    A training step makes and drops the same arrays again and again. By default glibc takes large ones from the system
    and gives them back, and the first touch of every page of the next one is a page fault: a fifth of the time of a
    small model's step. Without glibc, this does nothing.
    """
    if sys.platform != "linux":
        return {}
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return {}
    return {name: nbytes for name, (option, nbytes) in OPTIONS.items() if mallopt(option, nbytes)}
