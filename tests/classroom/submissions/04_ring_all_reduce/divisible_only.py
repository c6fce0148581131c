"""Cuts x with reshape, which needs a size that N divides."""
# loses: uneven_sizes
# says: On 4 ranks, reduce_scatter of 13 float64, rank \d failed
# says: ValueError: cannot reshape array of size 13 into shape \(4,\d?\)

import numpy as np

from minidist.ring import all_gather


def reduce_scatter(comm, x, out=None):
    n, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    chunks = x.reshape(n, x.size // n)
    partial = chunks[comm.rank - 1].copy()
    for step in range(2, n + 1):
        incoming = np.empty_like(partial)
        comm.sendrecv(partial, right, incoming, left)
        partial = incoming + chunks[comm.rank - step]
    return partial


def all_reduce(comm, x, out=None):
    return all_gather(comm, reduce_scatter(comm, x), x.size, out=out)
