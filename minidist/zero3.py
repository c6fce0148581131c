"""ZeRO stage 3, P_os+g+p: parameters are sharded, too. No model state is replicated any more.

    mpirun -n 4 python -m minidist.zero3
    mpirun -n 4 python -m minidist.zero3 --keep-last

Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, section 5.3.

A step is the engine's loop over the model's units (`minidist/engine.py`), which calls the functions below:

    before a unit's forward   parameters_of    gather them                    all-gather      (N-1)/N·Ψ sent in total
    after it                  forget           drop them
    before its backward       parameters_of    gather them again              all-gather      (N-1)/N·Ψ
    after it                  collect, forget  fill the bucket, drop them
                              reduce           sum the bucket over the ranks  reduce-scatter  (N-1)/N·Ψ
    at the end of the step    update           Adam on this rank's shard      nothing sent: the next forward gathers

Rank r holds shard r of every unit's parameters, gradients and optimizer state: 2Ψ/N + 2Ψ/N + 12Ψ/N = 16Ψ/N bytes. Any
model fits if there are enough ranks. A rank holds a whole unit only while it computes with that unit.

ZeRO-3 sends 3Ψ where data parallelism sends 2Ψ (section 7.2.2): 1.5 times the traffic for N times less memory.

The arrays of a unit's Flat (`minidist/nn/flat.py`), and when they exist:

    param, grad, master, moments   (padded/N,)   always: this rank's shard
    gathered                       (padded,)     from parameters_of to forget: the shards of all ranks, put together
    values                         (padded,)     while a unit runs: gathered, widened for arithmetic
    raw_grad, bucket               (padded,)     in the backward: the gradient as computed, and rounded to be sent

Real systems gather the next unit while this one computes: see `fsdp.py`. Here a rank waits for each gather. The bytes
are the same.

The last unit's backward comes right after its forward. With --keep-last the unit stays gathered in between, and
3Ψ - ψ_kept is sent; PyTorch's FSDP does this with its outermost unit. A head tied to the embedding reads the
embedding's matrix. The embedding then stays gathered from its first use in a pass to its last: it is gathered once
per pass, as every unit is, but held longer.
"""

from minidist import contents, ring
from minidist.data_parallel import Axes, DataParallel
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, flats_of
from minidist.nn.tensor import Array
from minidist.zero1 import ZeRO1
from minidist.zero2 import ZeRO2


class ZeRO3(ZeRO2):
    """One shard of all model states; a unit's parameters are gathered for its forward and for its backward."""

    def __init__(
        self, units: list[Unit], settings: Settings, comm: Comm, axes: Axes | None = None, keep_last: bool = False
    ) -> None:
        super().__init__(units, settings, comm, axes)
        self.kept = units[-1].reads if keep_last else []

    def allocate(self, flat: Flat, start: Array) -> None:
        flat.param = self.device.hold("parameters", start[self.piece(flat)].astype(self.precision.stored))
        flat.grad = self.states.zeros("gradients", flat.param.size, self.precision.summed)  # both (padded/N,)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        return flat.param, flat.grad

    def parameters_of(self, flat: Flat) -> Array:
        """All parameters of a Flat (padded,), from the shards of all ranks; sends nothing if they are here already."""
        if flat.gathered is None:
            flat.gathered = self.device.empty("gathered", flat.padded, self.precision.stored)
            with self.comm.phase(f"all-gather {self.direction}"):
                ring.all_gather(flat.comm, flat.param, flat.padded, out=flat.gathered)
        return flat.gathered

    def forget(self, flat: Flat) -> None:
        """Drop the gathered parameters: no later unit of this pass reads them."""
        if not (flat in self.kept and self.training and self.direction == "forward"):
            flat.gathered = None

    def after_update(self) -> None:
        """Send nothing: the next forward gathers the updated shards."""


def across_hosts(units: list[Unit], host: Comm, across: Comm) -> None:
    """Hybrid sharding (Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2): ZeRO-3 within a host, data parallelism
    across hosts. The G ranks of a host share one copy of the model, so parameters are gathered within the host. Each
    rank keeps 1/G of the gradients, and only this shard is summed with the same shard on the other hosts, W/G in all.
    A rank sends 2M/G·(W-G)/W bytes across, where ZeRO-3 over all W ranks would send most of its 3M across."""
    for flat in flats_of(units):
        flat.divide(host)
        flat.sum_over["all-reduce across hosts"] = across


LADDER = (DataParallel, ZeRO1, ZeRO2, ZeRO3)  # by stage: the engines of the data axis


if __name__ == "__main__":
    contents.run("zero3")  # its options, and what the paper promises: programs/zero3.py
