"""Binds in the backward what it gathered in the forward, which was given back."""
# loses: x

import numpy as np

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def before_backward(self, unit):
        for flat in self.read_by(unit):
            flat.bind(self.widened(flat.gathered), slopes=np.zeros(flat.padded, self.precision.computed))
