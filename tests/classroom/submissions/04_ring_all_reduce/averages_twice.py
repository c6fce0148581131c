"""The reduce-scatter makes the mean, and the all-reduce divides once more."""
# keeps: all_gather
# says: it holds the mean; the sum is wanted, not divided by the number of ranks
# says: it holds the sum divided by the number of ranks twice

from minidist import ring
from minidist.ring import all_gather


def reduce_scatter(comm, x, out=None):
    partial = ring.reduce_scatter(comm, x, out)
    partial /= comm.size
    return partial


def all_reduce(comm, x, out=None):
    result = all_gather(comm, reduce_scatter(comm, x.astype(float)), x.size)
    result /= comm.size
    if out is None:
        return result
    out[...] = result
    return out
