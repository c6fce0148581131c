"""Right, but rank 0 does all the work."""
# loses: reduce_scatter_steps, all_gather_steps, all_reduce_steps, memory
# says: rank 0 sends to rank 2 at through_rank_0.py:\d+; around the ring it sends to its right neighbour alone, rank 1
# says: Which array is as large as x, and is not the result\?

import numpy as np

Array = np.ndarray


def chunk(size: int, n: int, i: int) -> slice:
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))


def reduce_scatter(comm, x, out=None):
    total = collect(comm, x)
    mine = np.empty_like(x[chunk(x.size, comm.size, comm.rank)]) if out is None else out
    if comm.rank > 0:
        comm.recv(mine, 0)
        return mine
    for dest in range(1, comm.size):
        comm.send(total[chunk(x.size, comm.size, dest)], dest)
    mine[:] = total[chunk(x.size, comm.size, 0)]
    return mine


def all_gather(comm, x, size, out=None):
    out = np.empty(size, x.dtype) if out is None else out
    out[chunk(size, comm.size, comm.rank)] = x
    if comm.rank > 0:
        comm.send(x, 0)
        comm.recv(out, 0)
        return out
    for source in range(1, comm.size):
        comm.recv(out[chunk(size, comm.size, source)], source)
    for dest in range(1, comm.size):
        comm.send(out, dest)
    return out


def all_reduce(comm, x, out=None):
    out = np.empty_like(x) if out is None else out
    out[...] = collect(comm, x)
    if comm.rank > 0:
        comm.recv(out, 0)
        return out
    for dest in range(1, comm.size):
        comm.send(out, dest)
    return out


def collect(comm, x):
    total = x.copy()
    if comm.rank > 0:
        comm.send(x, 0)
        return total
    incoming = np.empty_like(x)
    for source in range(1, comm.size):
        comm.recv(incoming, source)
        total += incoming
    return total
