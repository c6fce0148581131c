"""ZeRO++: ZeRO-3 whose messages between hosts are fewer and smaller.

    mpirun -n 8 python -m minidist.zeropp --ranks-per-host 4

Wang et al., "ZeRO++: Extremely efficient collective communication for giant model training", 2023, arXiv 2306.10209.

ZeRO-3 gathers parameters twice and reduces gradients once: 3M bytes, M = 2Ψ. Links between hosts are slow. W ranks are
on H hosts of G, and section 3 changes each of the three. What a rank sends:

    forward    all-gather in int8, a scale for each block (qwZ)                           M/2 (W-1)/W
    backward   all-gather within the host, from a second copy that its ranks share (hpZ)  M (G-1)/G
    gradients  int4: all-to-all within the host (qgZ);                                    M/4 (G-1)/G
               a sum, and an all-to-all across hosts                                      M/4G (H-1)/H

There are two counts. Along the first ring a host sends M/2, its G ranks together M/4 of gradients: on many hosts 0.75M
leave one, where ZeRO-3's three rings send 3M. That is the paper's "4 times less". A rank itself sends 1.61M over all of
its links, where ZeRO-3 sends 2.95M (8 hosts of 8).

A block of elements shares a scale s, and x ≈ q·s with whole numbers q (section 3.1). |q| <= 127 and s = max |x|/127;
in int4, 7 in place of 127. A ring would round a partial sum at each of its W-1 steps, and add an error each time. Here
sums are formed in full precision, between two roundings, whatever W is. In one hop, a rank would send M/4 (W-G)/W
across: G times as much. Vectors are rounded, too; DeepSpeed sums them, and what 2W does not divide, uncompressed.

The second copy costs 2Ψ/G bytes a rank, in addition to 16Ψ/W. It is written in the forward, from what has arrived.
"""

import numpy as np

from minidist import contents, ring
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.nn.tensor import Array
from minidist.zero3 import ZeRO3

# ---- blocks ----------------------------------------------------------------------------------------------------------


def quantized(x: Array, block: int, most: int) -> tuple[Array, Array]:
    """x (rows, c) as whole numbers from -most to most, int8; and the blocks' scales (rows, ⌈c/block⌉), float32."""
    rows, c = x.shape
    blocks = np.zeros((rows, -(-c // block), block), np.result_type(x, np.float32))
    blocks.reshape(rows, -1)[:, :c] = x
    scales = (abs(blocks).max(axis=2) / most).astype(np.float32)
    numbers = blocks / np.where(scales > 0, scales, 1)[..., None]
    return np.rint(numbers).astype(np.int8).reshape(rows, -1)[:, :c], scales


def restored(numbers: Array, scales: Array, block: int, dtype: np.dtype) -> Array:
    """x (rows, c) again, except what `quantized` has rounded away."""
    return numbers * np.repeat(scales, block, axis=1)[:, : numbers.shape[1]].astype(np.result_type(dtype, np.float32))


def packed(numbers: Array) -> Array:
    """Two whole numbers from -7 to 7 in each byte: (rows, ⌈c/2⌉) of (rows, c)."""
    nibbles = np.pad(numbers + 8, ((0, 0), (0, numbers.shape[1] % 2))).astype(np.uint8)
    return nibbles[:, ::2] << 4 | nibbles[:, 1::2]


def unpacked(pairs: Array, c: int) -> Array:
    """The inverse of `packed`."""
    return np.stack([pairs >> 4, pairs & 15], axis=2).reshape(len(pairs), -1)[:, :c].astype(np.int8) - 8


# ---- the step --------------------------------------------------------------------------------------------------------


class ZeROpp(ZeRO3):
    """ZeRO-3 with quantized messages, and parameters that are gathered only once from other hosts."""

    def __init__(self, units: list[Unit], settings: Settings, comm: Comm, ranks_per_host: int, block: int) -> None:
        """ranks_per_host: G, consecutive ranks. block: elements that share a scale."""
        super().__init__(units, settings, comm)
        self.block, self.hosts = block, comm.size // ranks_per_host
        self.within = comm.split(comm.rank // ranks_per_host)  # G ranks
        self.across = comm.split(comm.rank % ranks_per_host)  # H ranks, one of each host
        self.second: dict[Flat, Array] = {}
        for flat in self.flats:  # (padded/G,)
            self.second[flat] = self.device.zeros("secondary", flat.padded // ranks_per_host, self.precision.stored)

    def parameters_of(self, flat: Flat) -> Array:
        if flat.gathered is None:
            flat.gathered = self.device.empty("gathered", flat.padded, self.precision.stored)
            if self.direction == "forward":
                self.gather_quantized(flat, flat.gathered)
            else:
                with self.comm.phase("all-gather backward"):
                    ring.all_gather(self.within, self.second[flat], flat.padded, out=flat.gathered)
        return flat.gathered

    def gather_quantized(self, flat: Flat, out: Array) -> None:
        """qwZ: all parameters (padded,), each shard in int8. This rank's own is rounded, too: all ranks compute with
        the same weights. A part is kept for the backward."""
        numbers, scales = quantized(flat.param[None], self.block, 127)
        with self.comm.phase("all-gather forward"):
            numbers = ring.all_gather(self.comm, numbers[0], flat.padded)
        with self.comm.phase("scales"):
            scales = ring.all_gather(self.comm, scales[0], self.comm.size * scales.size)
        shape = self.comm.size, -1
        out[...] = restored(numbers.reshape(shape), scales.reshape(shape), self.block, out.dtype).ravel()
        self.second[flat][...] = out[ring.chunk(flat.padded, self.within.size, self.within.rank)]

    def summed(self, comm: Comm, gradient: Array) -> Array:
        """qgZ: this rank's shard of the sum. Rank (host i, place j) is to have shard i·G + j, so slices are put in
        another order first: for each j of this host, those of the ranks (0, j), (1, j), ... (section 3.3). Otherwise
        the two hops would bring each rank another one's shard."""
        g, c = self.within.size, gradient.size // comm.size
        slices = gradient.reshape(self.hosts, g, c).swapaxes(0, 1).reshape(g, -1)  # (G, H·c)
        here = self.exchanged(self.within, slices, "all-to-all within hosts")
        there = self.exchanged(self.across, here.reshape(self.hosts, c), "all-to-all across hosts")
        return there.astype(gradient.dtype)

    @np.errstate(invalid="ignore")  # an overflowed gradient is found in the norm
    def exchanged(self, ranks: Comm, slices: Array, phase: str) -> Array:
        """Send row i of the slices to rank i, in int4; returns the sum of what arrives, in full precision."""
        numbers, scales = quantized(slices, self.block, 7)
        with self.comm.phase(phase):
            pairs = ring.all_to_all(ranks, packed(numbers))
        with self.comm.phase("scales"):
            scales = ring.all_to_all(ranks, scales)
        return restored(unpacked(pairs, slices.shape[1]), scales, self.block, slices.dtype).sum(axis=0)


if __name__ == "__main__":
    contents.run("zeropp")  # its options, and what the paper promises: programs/zeropp.py
