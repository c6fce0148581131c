"""ZeRO stage 2, P_os+g: gradients are divided too.

    mpirun -n 4 python -m minidist.zero2

Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, section 5.2.

Rank r updates only shard r, so it keeps only the summed gradient of shard r: 2Ψ/N bytes instead of 2Ψ. The backward
still computes whole gradients, one unit after another. Each goes into a bucket as large as its unit and is
reduce-scattered at once; the bucket is freed before the next unit's backward starts. (A tied head writes into the
embedding's gradient: that bucket lives from the head's backward, the first, to the embedding's, the last.)

The price is paid when gradients accumulate. With several micro-batches per step, stage 1 adds up locally and reduces
once at the end. Here no rank has room for a whole gradient, so every micro-batch reduces: a micro-batches send (a+1)Ψ
instead of 2Ψ. The paper's "no more communication" holds for a = 1.

Memory: 2Ψ + 2Ψ/N + 12Ψ/N = 2Ψ + 14Ψ/N bytes.
"""

from minidist import contents
from minidist.nn.flat import Flat
from minidist.nn.tensor import Array
from minidist.zero1 import ZeRO1


class ZeRO2(ZeRO1):
    """Parameters on every rank, gradients and optimizer state of one shard only."""

    accumulated: int | None = 1  # micro-batches added up here before a gradient is reduced

    def allocate(self, flat: Flat, start: Array) -> None:
        flat.param = self.device.hold("parameters", start.astype(self.precision.stored))  # (padded,)
        flat.grad = self.states.zeros("gradients", flat.padded // flat.shards, self.precision.summed)  # (padded/N,)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        return flat.param[self.piece(flat)], flat.grad

    def collect(self, flat: Flat) -> None:
        """Add the gradient to its bucket. A tied head leaves its part of the embedding's gradient in the embedding's
        bucket, which is complete, and freed, only after the embedding's own backward."""
        if self.buffers and flat.readers == 1:  # complete after one backward
            assert flat.raw_grad is not None
            self.buffers[flat.comm].put(flat.raw_grad, flat.grad)
            return
        if flat.bucket is None:
            flat.bucket = self.device.zeros("bucket", flat.padded, self.precision.summed)
        flat.collect(flat.bucket)

    def reduce(self, flat: Flat) -> None:
        """Each rank adds its shard of the summed bucket to the step's gradient; the bucket is freed."""
        if not self.buffers:
            assert flat.bucket is not None
            flat.grad += self.summed(flat.comm, flat.bucket)
        elif flat.bucket is not None:  # otherwise collect() has put it into the buffer
            self.buffers[flat.comm].put(flat.bucket, flat.grad)
        flat.bucket = None


if __name__ == "__main__":
    contents.run("zero2")  # its options, and what the paper promises: programs/zero2.py
