"""Halving and doubling: the ring's bytes in fewer messages, but only on 1, 2, 4, 8 ... ranks."""
# loses: three_ranks, bytes, messages
# says: On 3 ranks, all_reduce of 12 float64, rank \d failed
# says: cannot send to rank 3; ranks are 0 to 2

import numpy as np

from minidist.ring import all_gather, chunk, reduce_scatter  # noqa: F401


def all_reduce(comm, x, out=None):
    out = np.empty_like(x) if out is None else out
    out[...] = x
    low, high, distance, exchanges = 0, x.size, 1 << max(comm.size - 1, 0).bit_length() >> 1, []
    while distance:
        partner, middle = comm.rank ^ distance, (low + high) // 2
        give, keep = ((low, middle), (middle, high)) if comm.rank & distance else ((middle, high), (low, middle))
        giving, keeping = out[slice(*give)], out[slice(*keep)]
        incoming = np.empty_like(keeping)
        comm.sendrecv(giving, partner, incoming, partner)
        keeping += incoming
        exchanges.append((partner, giving, keeping))
        (low, high), distance = keep, distance // 2
    for partner, given, kept in reversed(exchanges):
        comm.sendrecv(kept, partner, given, partner)
    return out
