"""Lets the optimizer update a copy of the shard."""
# loses: x

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def owned(self, flat):
        return flat.param.copy(), flat.grad
