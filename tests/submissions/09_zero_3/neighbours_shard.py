"""Every rank takes the shard of the rank before it."""
# loses: x

import numpy as np

from minidist import ring, zero3


class ZeRO3(zero3.ZeRO3):
    def allocate(self, flat, start):
        mine = ring.chunk(flat.padded, self.comm.size, (self.comm.rank - 1) % self.comm.size)
        flat.param = start[mine].astype(self.precision.stored)
        flat.grad = np.zeros_like(flat.param)
