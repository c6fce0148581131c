"""One buffer to send from and to receive into."""
# keeps: all_gather
# says: cannot receive from rank \d into memory that is being sent to rank \d
# says: aliased_buffer.py, line 17, in reduce_scatter

import numpy as np

from minidist.ring import all_gather, chunk


def reduce_scatter(comm, x, out=None):
    n, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    buffer = np.empty(-(-x.size // n), x.dtype)
    buffer[:] = x[chunk(x.size, n, (comm.rank - 1) % n)]
    for step in range(2, n + 1):
        own = x[chunk(x.size, n, (comm.rank - step) % n)]
        comm.sendrecv(buffer, right, buffer, left)
        buffer += own
    return buffer


def all_reduce(comm, x, out=None):
    return all_gather(comm, reduce_scatter(comm, x), x.size, out=out)
