"""Divides the sum by the number of ranks; but the losses are weighted already."""
# loses: x

from minidist import ring, zero3


class ZeRO3(zero3.ZeRO3):
    def reduce(self, flat):
        with self.comm.phase("reduce-scatter gradients"):
            flat.grad += ring.reduce_scatter(self.comm, flat.bucket) / self.comm.size
        flat.bucket = None
