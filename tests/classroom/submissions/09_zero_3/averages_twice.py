"""Divides the sum by the number of ranks; but the losses are weighted already."""
# loses: reduce, training, accumulation, tied, evaluation, large, bytes, messages
# says: On 2 ranks, after the first backward: rank 0's flat.grad of embedding is wrong first at index \d+, element \d+ of the unit, of wte.weight: it is the sum divided by 2; the sum is wanted, for every rank's loss is weighted already

from minidist import ring, zero3


class ZeRO3(zero3.ZeRO3):
    def reduce(self, flat):
        with self.comm.phase("reduce-scatter gradients"):
            flat.grad += ring.reduce_scatter(self.comm, flat.bucket) / self.comm.size
        flat.bucket = None
