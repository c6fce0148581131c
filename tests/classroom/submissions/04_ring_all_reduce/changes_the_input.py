"""Adds up in x itself."""
# loses: input_unchanged
# says: reduce_scatter of 12 float64: rank 0's x was changed, first at index 0

import numpy as np

from minidist.ring import all_gather, chunk


def reduce_scatter(comm, x, out=None):
    n, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(1, n):
        sending = x[chunk(x.size, n, (comm.rank - step) % n)]
        adding = x[chunk(x.size, n, (comm.rank - step - 1) % n)]
        incoming = np.empty_like(adding)
        comm.sendrecv(sending, right, incoming, left)
        adding += incoming
    result = x[chunk(x.size, n, comm.rank)]
    return result.copy() if out is None else result


def all_reduce(comm, x, out=None):
    return all_gather(comm, reduce_scatter(comm, x), x.size, out=out)
