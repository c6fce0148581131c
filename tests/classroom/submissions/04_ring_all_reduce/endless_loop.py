"""Pads the size in a loop that never changes it. No message is involved."""
# loses: reduce_scatter_any
# says: (?s)On 4 ranks, reduce_scatter of 13 float64: hung: rank \d had used \d s of processor time.*computing at endless_loop.py:\d+ in padded
# patience: 1

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


def chunk(size: int, n: int, i: int) -> slice:
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))


def reduce_scatter(comm: Comm, x: Array, out: Array | None = None) -> Array:
    n, rank, right, left = comm.size, comm.rank, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    padded(x.size, n)
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


def all_reduce(comm: Comm, x: Array, out: Array | None = None) -> Array:
    return all_gather(comm, reduce_scatter(comm, x), x.size, out)


def padded(size, n):
    while size % n:
        size += n
    return size
