"""Cuts the unit as it is, in shards that differ by an element, and not as it is padded."""
# loses: allocate, training, accumulation, tied, evaluation, bytes, messages
# says: rank 1's flat.param of embedding is float64 \(62,\) where float64 \(63,\) is wanted: the unit has 125 elements, 126 with padding
# says: rank 1 failed at embedding in the forward:\nValueError: \w+ of shape \(62,\) where \w+ of shape \(63,\) is needed

import numpy as np

from minidist import ring, zero3


class ZeRO3(zero3.ZeRO3):
    def allocate(self, flat, start):
        mine = ring.chunk(flat.size, self.comm.size, self.comm.rank)
        flat.param = start[mine].astype(self.precision.stored)
        flat.grad = np.zeros_like(flat.param)
