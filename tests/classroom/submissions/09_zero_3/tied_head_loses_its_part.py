"""Makes a new bucket for every backward: of a tied embedding the head's part is lost."""
# loses: tied
# says: On 2 ranks, tied, after the first backward: rank 0's flat.grad of embedding is wrong first at index 0, element 0 of the unit, of wte.weight: it is not the sum over the ranks

import numpy as np

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def collect(self, flat):
        flat.bucket = np.zeros(flat.padded, self.precision.stored)
        flat.collect(flat.bucket)
