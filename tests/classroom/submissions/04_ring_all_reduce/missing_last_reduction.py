"""The reduce-scatter receives the last partial sum, and forgets to add this rank's own part."""
# keeps: all_gather
# says: 2 ranks, reduce_scatter of 12 float64: rank 0 is wrong first at index 0, in chunk 0: rank 0's chunk 0 is missing

import numpy as np

from minidist.ring import all_gather, chunk


def reduce_scatter(comm, x, out=None):
    n, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    partial = x[chunk(x.size, n, (comm.rank - 1) % n)].copy()
    for step in range(2, n + 1):
        own = x[chunk(x.size, n, (comm.rank - step) % n)]
        incoming = np.empty_like(own)
        comm.sendrecv(partial, right, incoming, left)
        partial = incoming + own if step < n else incoming
    if out is None:
        return partial
    out[...] = partial
    return out


def all_reduce(comm, x, out=None):
    return all_gather(comm, reduce_scatter(comm, x), x.size, out=out)
