"""Binds in the backward what it gathered in the forward, which was given back."""
# loses: backward, training, accumulation, tied, evaluation, large, bytes, messages, memory
# says: On 1 rank, rank 0 failed in before_backward of head:\n  File forgets_the_backward_gather.py, line 14, in before_backward
# says: 'NoneType' object has no attribute 'astype'

import numpy as np

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def before_backward(self, unit):
        for flat in self.read_by(unit):
            flat.bind(self.widened(flat.gathered), slopes=np.zeros(flat.padded, self.precision.computed))
