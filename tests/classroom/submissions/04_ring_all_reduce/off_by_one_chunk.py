"""Every rank ends with the chunk after its own."""
# keeps: all_gather
# says: reduce_scatter of 12 float64: rank 0 is wrong first at index 0, in chunk 0: it holds element 6 of the sum, of chunk 1

import numpy as np

from minidist.ring import all_gather, chunk


def reduce_scatter(comm, x, out=None):
    n, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    partial = x[chunk(x.size, n, comm.rank)]
    for step in range(1, n):
        own = x[chunk(x.size, n, (comm.rank - step) % n)]
        incoming = np.empty_like(own)
        comm.sendrecv(partial, right, incoming, left)
        partial = incoming + own
    if out is None:
        return partial
    out[...] = partial
    return out


def all_reduce(comm, x, out=None):
    return all_gather(comm, reduce_scatter(comm, x), x.size, out=out)
