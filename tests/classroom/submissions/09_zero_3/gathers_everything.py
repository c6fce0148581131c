"""Gathers all units before the first one's forward and, in the backward, before the last one's."""
# loses: memory
# says: rank 0 holds [56]\d\d,\d\d\d bytes of arrays beyond its shards after parameters_of of embedding in the forward, where 128,256 are needed\. Whose parameters or gradients are still here, or already\? \(embedding has 32,064 parameters\.\)

from minidist import zero3


class ZeRO3(zero3.ZeRO3):
    def parameters_of(self, flat):
        if flat is self.flats[0 if self.direction == "forward" else -1]:
            for each in self.flats:
                super().parameters_of(each)
        return super().parameters_of(flat)
