"""Right, but rank 0 does all the work."""
# loses: bytes, messages, memory
# says: rank 0 sent 14,400 bytes where the ring sends 7,200\.
# says: to rank 2: 4,800 bytes in 1 message at through_rank_0.py:24\n    The ring sends to the right only
# says: rank 0 sends to rank 2 at through_rank_0.py:24; around the ring it sends to its right neighbour alone, rank 1

import numpy as np

from minidist.ring import all_gather, reduce_scatter  # noqa: F401


def all_reduce(comm, x, out=None):
    out = np.empty_like(x) if out is None else out
    out[...] = x
    if comm.rank > 0:
        comm.send(x, 0)
        comm.recv(out, 0)
        return out
    incoming = np.empty_like(x)
    for source in range(1, comm.size):
        comm.recv(incoming, source)
        out += incoming
    for dest in range(1, comm.size):
        comm.send(out, dest)
    return out
