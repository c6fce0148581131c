"""Averages what it gathers, and its own shard with it."""
# loses: gather, training, accumulation, tied, evaluation, large, bytes, messages
# says: gather changed flat.param on rank \d

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def gather(self, flat, phase):
        whole = super().gather(flat, phase).copy()
        flat.param /= 2
        flat.gathered = whole
        return whole
