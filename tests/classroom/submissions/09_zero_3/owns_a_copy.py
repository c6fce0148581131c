"""Lets the optimizer update a copy of the shard."""
# loses: allocate, training, accumulation, tied, evaluation, large, bytes, messages, memory
# says: 1 was added to what owned returned on rank 0 for embedding, and its flat.param has not become 1 more. Return the array itself, not a copy
# says: after step 1: rank 0's flat.param of embedding is wrong first at index \d+, .*: it is as it was at the start

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def owned(self, flat):
        return flat.param.copy(), flat.grad
