"""The all-gather stops one step too early."""
# keeps: reduce_scatter
# says: all_gather of 12 float64: rank 0 is wrong first at index 6, in chunk 1: it holds what is in nobody's chunk

import numpy as np

from minidist.ring import chunk, reduce_scatter


def all_gather(comm, x, size, out=None):
    n, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = np.zeros(size, x.dtype) if out is None else out
    out[chunk(size, n, comm.rank)] = x
    for step in range(n - 2):
        sending, receiving = chunk(size, n, (comm.rank - step) % n), chunk(size, n, (comm.rank - step - 1) % n)
        comm.sendrecv(out[sending], right, out[receiving], left)
    return out


def all_reduce(comm, x, out=None):
    return all_gather(comm, reduce_scatter(comm, x), x.size, out=out)
