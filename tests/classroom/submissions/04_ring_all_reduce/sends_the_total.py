"""Everything goes around, but each rank passes on its running total instead of what it received."""
# keeps: reduce_scatter, all_gather
# says: 4 ranks, all_reduce of 12 float64: rank 0 is wrong first at index 0, in chunk 0: rank 2's chunk 0 was added 3 times and rank 3's chunk 0 was added 3 times
# says: to rank 1: 14,400 bytes in 3 messages at sends_the_total.py:17\n    That is more than a chunk of 1,200 each

import numpy as np

from minidist.ring import all_gather, reduce_scatter  # noqa: F401


def all_reduce(comm, x, out=None):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = np.empty_like(x) if out is None else out
    out[...] = x
    incoming = np.empty_like(x)
    for _ in range(comm.size - 1):
        comm.sendrecv(out, right, incoming, left)
        out += incoming
    return out
