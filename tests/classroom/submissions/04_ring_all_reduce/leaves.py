"""One rank leaves when it has what it wants."""
# keeps: reduce_scatter, all_gather
# says: On 2 ranks, all_reduce of 12 float64, rank 1 failed
# says: sys.exit\(0\) was called at leaves.py:15. A rank that leaves on its own would leave the others waiting

import sys

from minidist import ring
from minidist.ring import all_gather, reduce_scatter  # noqa: F401


def all_reduce(comm, x, out=None):
    out = ring.all_reduce(comm, x, out)
    if comm.rank == 1:
        sys.exit(0)
    return out
