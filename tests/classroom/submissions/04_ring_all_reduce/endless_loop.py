"""Pads the size in a loop that never changes it. No message is involved."""
# loses: uneven_sizes
# says: On 4 ranks, reduce_scatter of 13 float64: hung: it had not ended after 8 s
# says: rank 3: computing at endless_loop.py:1[34] in reduce_scatter
# patience: 8

from minidist import ring
from minidist.ring import all_gather


def reduce_scatter(comm, x, out=None):
    padded = x.size
    while padded % comm.size:
        padded += comm.size
    return ring.reduce_scatter(comm, x, out)


def all_reduce(comm, x, out=None):
    return all_gather(comm, reduce_scatter(comm, x), x.size, out=out)
