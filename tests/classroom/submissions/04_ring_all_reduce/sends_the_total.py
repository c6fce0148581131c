"""Everything goes around, but each rank passes on its running total instead of what it received."""
# loses: all_reduce, all_reduce_steps, memory
# says: 4 ranks, all_reduce of 12 float64: rank 0 is wrong first at index 0, in chunk 0: rank 2's chunk 0 was added 3 times and rank 3's chunk 0 was added 3 times
# says: to rank 1: 14,400 bytes in 3 messages at sends_the_total.py:\d+\n    That is more than a chunk of 1,200 each

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


def chunk(size: int, n: int, i: int) -> slice:
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))


def reduce_scatter(comm: Comm, x: Array, out: Array | None = None) -> Array:
    n, rank, right, left = comm.size, comm.rank, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total = x[chunk(x.size, n, (rank - 1) % n)].copy()
    for step in range(2, n + 1):
        own = x[chunk(x.size, n, (rank - step) % n)]
        incoming = np.empty_like(own)
        comm.sendrecv(total, right, incoming, left)
        total = incoming + own
    if out is None:
        return total
    out[:] = total
    return out


def all_gather(comm: Comm, x: Array, size: int, out: Array | None = None) -> Array:
    n, rank, right, left = comm.size, comm.rank, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = np.empty(size, x.dtype) if out is None else out
    out[chunk(size, n, rank)] = x
    for step in range(n - 1):
        sending, receiving = (rank - step) % n, (rank - step - 1) % n
        comm.sendrecv(out[chunk(size, n, sending)], right, out[chunk(size, n, receiving)], left)
    return out


def all_reduce(comm, x, out=None):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = np.empty_like(x) if out is None else out
    out[...] = x
    incoming = np.empty_like(x)
    for _ in range(comm.size - 1):
        comm.sendrecv(out, right, incoming, left)
        out += incoming
    return out
