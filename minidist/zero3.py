"""ZeRO stage 3, P_os+g+p: parameters are divided as well. Nothing is held N times any more.

    mpirun -n 4 python -m minidist.zero3
    mpirun -n 4 python -m minidist.zero3 --keep-last

Rajbhandari et al., "ZeRO", SC 2020, section 5.3.

A step is the engine's loop (`minidist/engine.py`), which calls the functions below, in this order:

    for each unit         before_forward    gather its parameters          all-gather         (N-1)/N·Ψ sent in all
                          after_forward     release them
    for each, backwards   before_backward   gather them again              all-gather         (N-1)/N·Ψ
                          after_backward    reduce its gradient, release   reduce-scatter     (N-1)/N·Ψ
    step                  update            Adam on this rank's shard      nothing: the next forward gathers

Rank r holds shard r of every unit's parameters, gradients and optimizer state: 2Ψ/N + 2Ψ/N + 12Ψ/N = 16Ψ/N bytes. Any
model fits if there are enough ranks. To compute with a unit, all of it must be here, but only for that moment.

3Ψ on the wire where data parallelism sends 2Ψ (section 7.2.2): 1.5 times the traffic for N times less memory.

One unit's arrays (`minidist/nn/flat.py`), and when they are here:

    param, grad, master, moments   (padded/N,)   always: this rank's shard
    gathered                       (padded,)     from before_* to after_*: everyone's param, put together
    values                         (padded,)     meanwhile: gathered, widened for arithmetic
    slopes, bucket                 (padded,)     in the backward: the gradient as computed, and rounded to be sent

Real systems gather the next unit while this one computes. Here a rank waits for each gather: same bytes, same order.

The last unit's backward follows right on its forward. With --keep-last it stays gathered in between and 3Ψ - ψ_kept is
sent, as PyTorch's FSDP does with its outermost unit. A head tied to the embedding reads the embedding's matrix, so the
embedding is gathered from its first use in a pass to its last: once a pass, like every other unit, but for long.
"""

import numpy as np

from minidist import ring, train
from minidist.claims.claim import Claim
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims, peak_claim, traffic_claims
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.nn.tensor import Array
from minidist.zero2 import ZeRO2


class ZeRO3(ZeRO2):
    """One shard of everything; a unit's parameters are gathered around its forward and its backward."""

    def __init__(self, units: list[Unit], settings: Settings, comm: Comm, keep_last: bool = False) -> None:
        self.last_reader = {read: unit for unit in units for read in unit.reads}  # in a forward pass
        self.kept = units[-1].reads if keep_last else []
        super().__init__(units, settings, comm)

    def allocate(self, flat: Flat, start: Array) -> None:
        flat.param = start[self.piece(flat)].astype(self.precision.stored)  # (padded/N,)
        flat.grad = np.zeros_like(flat.param)  # (padded/N,)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        return flat.param, flat.grad

    def gather(self, flat: Flat, phase: str) -> Array:
        """All parameters of a unit (padded,), from everyone's shard; no message if they are here already."""
        if flat.gathered is None:
            with self.comm.phase(phase):
                flat.gathered = ring.all_gather(self.comm, flat.param, flat.padded)
        return flat.gathered

    def before_forward(self, unit: Unit) -> None:
        for flat in self.read_by(unit):
            flat.bind(self.widened(self.gather(flat, "all-gather forward")))

    def after_forward(self, unit: Unit) -> None:
        """Release what no later unit of this pass reads. A parameter that is used now raises Released."""
        for read in unit.reads:
            flat = self.flats[read]
            flat.release()
            if self.last_reader[read] is unit and not (read in self.kept and self.training):
                flat.gathered = None

    def before_backward(self, unit: Unit) -> None:
        for flat in self.read_by(unit):
            values = self.widened(self.gather(flat, "all-gather backward"))
            flat.bind(values, slopes=np.zeros(flat.padded, self.precision.computed))

    def after_backward(self, unit: Unit) -> None:
        """Reduce-scatter the unit's gradient, each rank its shard, and release: in a backward, a unit is the last to
        read its own parameters."""
        for flat in self.read_by(unit):
            if flat.bucket is None:
                flat.bucket = np.zeros(flat.padded, self.precision.stored)
            flat.collect(flat.bucket)
        self.observe()
        for flat in self.read_by(unit):
            flat.release()
        flat = self.flats[unit]
        self.reduce(flat)  # as in stage 2: flat.grad += reduce_scatter(flat.bucket)
        flat.gathered = None

    def after_update(self) -> None:
        """The updated shards stay where they are: the next forward gathers them."""


def claims(run: Run) -> list[Claim]:
    """What the papers say of this run, beside what it held and sent."""
    kept = run.read_by_head if run.options.keep_last else 0
    return [
        *memory_claims(run, stage=3),
        peak_claim(run, "FSDP §3.2.1", "peak gathered", buckets=2),  # parameters and their gradients
        *traffic_claims(run, stage=3, kept=kept),
    ]


def add_options(parser: train.Parser) -> None:
    parser.add_argument("--keep-last", action="store_true", help="keep the last unit gathered from forward to backward")


def make_engine(units: list[Unit], settings: Settings, comm: Comm, options: train.Options) -> ZeRO3:
    return ZeRO3(units, settings, comm, options.keep_last)


if __name__ == "__main__":
    train.main("zero3", __doc__, make_engine, claims, add_options)
