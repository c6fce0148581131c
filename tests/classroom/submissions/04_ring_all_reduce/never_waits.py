"""Starts to send, and never waits for it."""
# keeps: reduce_scatter
# says: never waited for, so the data may be missing: isend to rank \d at never_waits.py:16

import numpy as np

from minidist.ring import chunk, reduce_scatter


def all_gather(comm, x, size, out=None):
    n, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = np.empty(size, x.dtype) if out is None else out
    out[chunk(size, n, comm.rank)] = x
    for step in range(n - 1):
        sending, receiving = chunk(size, n, (comm.rank - step) % n), chunk(size, n, (comm.rank - step - 1) % n)
        comm.isend(out[sending], right)
        comm.recv(out[receiving], left)
    return out


def all_reduce(comm, x, out=None):
    return all_gather(comm, reduce_scatter(comm, x), x.size, out=out)
