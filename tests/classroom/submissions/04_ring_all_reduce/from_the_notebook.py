"""The notebook's steps, in which a chunk is one number."""
# keeps: all_gather, all_gather_any, all_gather_out, all_gather_steps, all_reduce, all_reduce_out, all_reduce_steps, memory, factor, timing, meaning
# says: returned float64 \(1,\) where float64 \(3,\) is wanted

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


def chunk(size: int, n: int, i: int) -> slice:
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))


def reduce_scatter(comm, x, out=None):
    work = x.copy()
    for step in range(1, comm.size):
        reduce_scatter_step(comm, work, step)
    return work[[comm.rank]]


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


def reduce_scatter_step(comm, work, step):
    n, rank = comm.size, comm.rank
    sending = (rank - step) % n
    adding = (rank - step - 1) % n
    incoming = np.empty(1, work.dtype)
    comm.sendrecv(work[[sending]], (rank + 1) % n, incoming, (rank - 1) % n)
    work[adding] += incoming[0]
