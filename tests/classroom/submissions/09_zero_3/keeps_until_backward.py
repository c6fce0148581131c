"""Keeps what the forward gathered until the backward has used it: saves a third of the bytes, and no memory at all."""
# loses: forget, tied, bytes, messages, memory
# says: On 1 rank, embedding: flat.gathered is still there after forget in the forward, on rank 0
# says: in phase 'all-gather backward': 0 bytes instead of 3,552
# says: bytes of arrays beyond its shards after forget of embedding in the forward, where 0 are needed

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def forget(self, flat):
        if self.direction == "backward" or not self.training:
            flat.gathered = None
