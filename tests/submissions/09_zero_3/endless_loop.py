"""Waits for the last micro-batch before it reduces; but that one comes after this one's backward."""
# loses: x
# patience: 5

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def reduce(self, flat):
        while not self.last_micro_batch:
            pass
        super().reduce(flat)
