"""ZeRO stage 2, P_os+g: gradients are divided too.

    mpirun -n 4 python -m minidist.zero2

Rajbhandari et al., "ZeRO", SC 2020, section 5.2.

Rank r updates shard r alone, so the summed gradient of shard r is all that it needs to keep: 2Ψ/N bytes instead of 2Ψ.
The backward still makes whole gradients, one unit after the other. Each goes into a bucket as large as its unit, is
reduce-scattered at once, and the bucket is given back before the next unit's backward starts. (A tied head writes into
the embedding's gradient: that bucket is there from the head's backward, the first, to the embedding's, the last.)

What one pays is the freedom to accumulate: with several micro-batches to a step, stage 1 adds up locally and reduces
once at the end, but here there is no place in which a whole gradient could wait, so every micro-batch reduces. For a of
them (a+1)Ψ is sent instead of 2Ψ; the paper's "no more communication" holds for a = 1.

Memory: 2Ψ + 2Ψ/N + 12Ψ/N = 2Ψ + 14Ψ/N bytes.
"""

from minidist import contents
from minidist.nn.flat import Flat
from minidist.nn.tensor import Array
from minidist.zero1 import ZeRO1


class ZeRO2(ZeRO1):
    """Parameters on every rank, gradients and optimizer state of one shard."""

    accumulated: int | None = 1  # micro-batches that add up here before they are reduced

    def allocate(self, flat: Flat, start: Array) -> None:
        flat.param = self.device.hold("parameters", start.astype(self.precision.stored))  # (padded,)
        flat.grad = self.states.zeros("gradients", flat.padded // flat.shards, self.precision.stored)  # (padded/N,)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        return flat.param[self.piece(flat)], flat.grad

    def collect(self, flat: Flat) -> None:
        """Into the bucket. A tied head leaves its part of the embedding's gradient in the embedding's bucket, which is
        complete, and goes, only after the embedding's own backward."""
        if self.buffers and flat.readers == 1:  # complete as it is
            assert flat.slopes is not None
            self.buffers[flat.comm].put(flat.slopes, flat.grad)
            return
        if flat.bucket is None:
            flat.bucket = self.device.zeros("bucket", flat.padded, self.precision.stored)
        flat.collect(flat.bucket)

    def reduce(self, flat: Flat) -> None:
        """Each rank adds its shard of the summed bucket to what it has of this step; the bucket is given back."""
        if not self.buffers:
            assert flat.bucket is not None
            flat.grad += self.summed(flat.comm, flat.bucket)
        elif flat.bucket is not None:  # it is in the buffer otherwise
            self.buffers[flat.comm].put(flat.bucket, flat.grad)
        flat.bucket = None


if __name__ == "__main__":
    contents.run("zero2")  # its options, and what the paper promises: programs/zero2.py
