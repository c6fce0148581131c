"""Keeps its shard of its own gradient, without asking the others for theirs."""
# loses: x

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def reduce(self, flat):
        flat.grad += flat.bucket[self.piece(flat)]
        flat.bucket = None
