"""Let the C library keep freed memory for the next array."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def keep_freed_memory() -> None:
    """Do not return the memory of dropped arrays to the operating system.

    A training step makes and drops the same arrays again and again. By default glibc takes large ones from the system
    and gives them back, and the first touch of every page of the next one is a page fault: a fifth of the time of a
    small model's step. Elsewhere than on glibc, nothing is done.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)  # bytes; the most that all versions accept
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
