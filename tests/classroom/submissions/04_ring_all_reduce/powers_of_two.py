"""Halving and doubling: the ring's bytes in fewer messages, but only on 1, 2, 4, 8 ... ranks."""
# loses: all_reduce, all_reduce_steps, memory
# says: On 3 ranks, all_reduce of 12 float64, rank \d failed
# says: cannot send to rank 3; ranks are 0 to 2

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
    out = np.empty_like(x) if out is None else out
    out[...] = x
    low, high, distance, exchanges = 0, x.size, 1 << max(comm.size - 1, 0).bit_length() >> 1, []
    while distance:
        partner, middle = comm.rank ^ distance, (low + high) // 2
        give, keep = ((low, middle), (middle, high)) if comm.rank & distance else ((middle, high), (low, middle))
        giving, keeping = out[slice(*give)], out[slice(*keep)]
        incoming = np.empty_like(keeping)
        comm.sendrecv(giving, partner, incoming, partner)
        keeping += incoming
        exchanges.append((partner, giving, keeping))
        (low, high), distance = keep, distance // 2
    for partner, given, kept in reversed(exchanges):
        comm.sendrecv(kept, partner, given, partner)
    return out
