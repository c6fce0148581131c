"""Let the C library keep freed memory for the next array."""

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress

# Each option's number in glibc's malloc.h, and the bytes that it is set to. 32 MB is the most that all versions accept
# for the second.
OPTIONS = {"M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_MMAP_THRESHOLD": (-3, 32 << 20)}


def keep_freed_memory() -> dict[str, int]:
    """Do not return the memory of dropped arrays to the operating system. Returns the options that were set, in bytes.

    A training step makes and drops the same arrays again and again. By default glibc takes large ones from the system
    and gives them back, and the first touch of every page of the next one is a page fault: a fifth of the time of a
    small model's step. Without glibc, this does nothing.
    """
    set_one = mallopt()
    return {name: nbytes for name, (option, nbytes) in OPTIONS.items() if set_one(option, nbytes)}


M_ARENA_MAX = -8


def settle_arenas() -> None:
    """Say how many arenas threads may take their memory from: as many as glibc would allow. When it has made eight, it
    would count the cores by reading a file, and the kernel would count that as read by the thread that came first."""
    mallopt()(M_ARENA_MAX, 8 * (os.cpu_count() or 1))


def mallopt() -> Callable[[int, int], int]:
    """glibc's function that sets an option; without glibc, one that sets none."""
    with suppress(OSError, AttributeError):
        if sys.platform == "linux":
            return ctypes.CDLL("libc.so.6").mallopt
    return lambda option, value: 0
