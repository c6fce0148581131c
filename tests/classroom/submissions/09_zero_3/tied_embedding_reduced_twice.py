"""Reduces as soon as something was collected: of a tied embedding first the head's part, then its own."""
# loses: tied
# says: On 2 ranks, tied: rank 0 sent
# says: in phase 'reduce-scatter gradients': \d,\d\d\d bytes instead of \d,\d\d\d, at tied_embedding_reduced_twice.py:12

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def collect(self, flat):
        super().collect(flat)
        super().reduce(flat)

    def reduce(self, flat):
        pass
