"""ZeRO stage 1, P_os: the optimizer state is divided among the ranks.

    mpirun -n 4 python -m minidist.zero1

Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models", SC 2020,
arXiv 1910.02054, section 5.1.

In data parallelism every rank makes the same update with the same optimizer state: 12Ψ bytes of master copy, momentum
and variance, replicated on N ranks. Here rank r keeps these for shard r of every unit and updates only shard r. It
needs only the summed gradient of that shard, so the all-reduce splits into its two halves (section 7.1):

    gradients    reduce-scatter   each rank gets the sum of its shard       (N-1)/N·Ψ sent
    update       of the shard                                               nothing sent
    parameters   all-gather       each rank gets all updated shards         (N-1)/N·Ψ sent

That is the same 2Ψ on the wire as data parallelism, and 4Ψ + 12Ψ/N bytes of memory instead of 16Ψ.
"""

from minidist import contents, ring
from minidist.data_parallel import DataParallel
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.optim import sum_of_squares
from minidist.nn.tensor import Array


class ZeRO1(DataParallel):
    """Parameters and gradients on every rank, optimizer state of one shard only."""

    def piece(self, flat: Flat) -> slice:
        """Shard r of every Flat: the elements whose optimizer state rank r keeps."""
        return ring.chunk(flat.padded, flat.comm.size, flat.comm.rank)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        shard = self.piece(flat)
        return flat.param[shard], flat.grad[shard]

    def summed(self, comm: Comm, gradient: Array) -> Array:
        """Sum this rank's shard over the ranks, in place. The rest of the gradient is left unsummed and unused."""
        shard = gradient[ring.chunk(gradient.size, comm.size, comm.rank)]
        with self.comm.phase("reduce-scatter gradients"):
            return ring.reduce_scatter(comm, gradient, out=shard)

    def squares(self) -> float:
        """Each rank adds up its own shards; the ranks then exchange their N sums."""
        return self.sum_of(sum(sum_of_squares(self.owned(flat)[1]) for flat in self.flats if flat.counted))

    def after_update(self) -> None:
        """Each rank has updated one shard: gather all shards on every rank."""
        for flat in self.flats:
            self.gather(flat)

    def gather(self, flat: Flat) -> None:
        with self.comm.phase("all-gather parameters"):
            ring.all_gather(flat.comm, flat.param[self.piece(flat)], flat.padded, out=flat.param)

    def whole(self, flat: Flat, piece: Array) -> Array:
        with self.comm.phase("checkpoint"):
            return ring.all_gather(flat.comm, piece, flat.padded)


if __name__ == "__main__":
    contents.run("zero1")  # its options, and what the paper promises: programs/zero1.py
