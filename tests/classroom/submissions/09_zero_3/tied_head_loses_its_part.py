"""Collects the gradient of the unit's own parameters alone: the tied head's part of the embedding's is lost."""
# loses: tied
# says: On 2 ranks, tied, after the first backward: rank 0's flat.grad of embedding is wrong first at index 0, element 0 of the unit, of wte.weight: it is not the sum over the ranks

import numpy as np

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def after_backward(self, unit):
        for flat in self.read_by(unit):
            if flat is self.flats[unit]:
                flat.bucket = np.zeros(flat.padded, self.precision.stored)
                flat.collect(flat.bucket)
            flat.release()
        self.reduce(self.flats[unit])
        self.flats[unit].gathered = None
