"""A second account of a rank's arrays, which does not depend on engines: NumPy's own.

A pool counts registered arrays. NumPy reports the data of every array to Python's tracemalloc, registered or not. So an
array that was made and not registered shows as a difference between the two. They are compared at every boundary (after
each unit, each instruction, each update), when no operation is under way: there every array must be registered. Within
an operation there is scratch, so NumPy's peak is above the pool's by the temporary arrays of one operation.

A third account is the kernel's, of the whole process. It knows pages, not arrays. It is higher than NumPy's by Python's
own objects and their traces, holes that the allocator keeps, the buffers of BLAS and MPI, and code that is loaded when
it is first needed. So it bounds the others, and equals none.
"""

import tracemalloc
from typing import Any

import numpy as np

from minidist.memory import kernel
from minidist.memory.pool import ALL, Pool

SLACK = 1024  # bytes: a handful of small arrays, such as a random generator's state, or the numbers of some rows


class MemoryWitness:
    """Compares all pools of a rank together with NumPy's account, which does not distinguish device and host. Tracing
    must have begun (`begin`) before the pools' first array was made. Boundaries are those of the first pool.

    began: the process's pages when tracing began, if the kernel tells them.

    It slows every step: Python's own objects are traced along with the arrays, and listed at each boundary.
    """

    def __init__(self, *pools: Pool, began: kernel.Pages | None = None) -> None:
        self.pools, self.began = pools, began
        self.boundaries = 0
        self.unnamed: dict[str, int] = {}  # boundaries that differ by more than SLACK -> unregistered bytes
        self.peak = self.pool_peak = 0  # bytes of arrays, by either account
        self.within = ""  # the boundary before which NumPy's account was at its peak
        self.pythons = 0  # the most bytes of Python's own objects, since tracing began
        self._most = 0  # bytes that the pools have held since the last boundary
        tracemalloc.reset_peak()
        for pool in pools:
            pool.watchers.append(self)

    def held_bytes(self) -> int:
        """Bytes in all pools now."""
        return sum(pool.held[ALL] for pool in self.pools)

    @property
    def scratch(self) -> int:
        """Bytes by which NumPy's peak is above the pools'. NumPy's peak is exact, except for the growth of Python's own
        objects, which share the trace, within one unit: some thousands of bytes."""
        return self.peak - self.pool_peak

    def changed(self, pool: Pool) -> None:
        self._most = max(self._most, self.held_bytes())

    def note_boundary(self, pool: Pool, what: str, name: str) -> None:
        traced, most_traced = tracemalloc.get_traced_memory()
        arrays, held = arrays_held(), self.held_bytes()
        self.boundaries += 1
        if abs(arrays - held) > SLACK:
            self.unnamed[f"{what} {self.boundaries}, {name}"] = arrays - held
        self.pythons = max(self.pythons, traced - arrays)
        if most_traced - (traced - arrays) > self.peak:
            self.peak, self.within = most_traced - (traced - arrays), name
        self.pool_peak = max(self.pool_peak, self._most)
        self._most = held
        tracemalloc.reset_peak()

    def close(self) -> dict[str, Any]:
        """Stop comparing. Returns the findings, for a report."""
        for pool in self.pools:
            pool.watchers.remove(self)
        found = {"boundaries": self.boundaries, "unnamed": self.unnamed, "peak": self.peak, "scratch": self.scratch}
        found["within"] = self.within
        if self.began:
            pages = kernel.pages()
            found["process"] = pages.most - self.began.now  # its largest growth
            found["mapped"] = pages.mapped - self.began.mapped
            found["pythons"] = self.pythons + tracemalloc.get_tracemalloc_memory()
        return found


def begin() -> kernel.Pages | None:
    """Start tracing NumPy's arrays; existing ones do not count. Resets the kernel's peak, and returns the process's
    pages now; None if the kernel keeps no such count."""
    tracemalloc.start()
    tracemalloc.clear_traces()
    try:
        kernel.forget_most()
        return kernel.pages()
    except OSError:
        return None


def arrays_held() -> int:
    """Bytes of data of all arrays that were made since tracing began and still exist."""
    numpys = np.lib.tracemalloc_domain
    traces: Any = tracemalloc.take_snapshot().traces
    # The raw tuples (domain, bytes, ...), because any object or list made from them would itself be traced.
    return sum(trace[1] for trace in traces._traces if trace[0] == numpys)
