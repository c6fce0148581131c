"""Keeps its shard of its own gradient, without asking the others for theirs."""
# loses: reduce, training, accumulation, tied, evaluation, large, bytes, messages
# says: it is this rank's own part, not summed over the ranks
# says: in phase 'reduce-scatter gradients': 0 bytes instead of 3,552

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def reduce(self, flat):
        flat.grad += flat.bucket[self.piece(flat)]
        flat.bucket = None
