"""The partial sum of the first chunk starts with this rank's part, which is then added once more at the end."""
# keeps: all_gather
# says: 2 ranks, reduce_scatter of 12 float64: rank 1 is wrong first at index 0 \(element 6 of x\), in chunk 1: rank 1's chunk 1 was added twice

import numpy as np

from minidist.ring import all_gather, chunk
from minidist.ring import reduce_scatter as right_one


def reduce_scatter(comm, x, out=None):
    partial = right_one(comm, x)
    if comm.rank == 1:
        partial += x[chunk(x.size, comm.size, comm.rank)]
    if out is None:
        return partial
    out[...] = partial
    return out


def all_reduce(comm, x, out=None):
    out = np.empty_like(x) if out is None else out
    return all_gather(comm, reduce_scatter(comm, x), x.size, out=out)
