"""Several kinds of parallelism at once, each along an axis of its own.

    mpirun -n 8 python -m minidist.parallel3d --tensor 2 --zero 1
    mpirun -n 8 python -m minidist.parallel3d --data 8 --zero 3 --shard 4

Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021, section 3
(how the kinds are combined). Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2 (hybrid sharding).

Tensor parallelism changes what a unit is: a t-th of a layer, with communication inside. Data parallelism and ZeRO
change what happens around a unit, and do not ask what is in it. So one goes in front of the other: the engines below
are those of the earlier chapters, and each talks along its own axis. A rank at place i of the data axis and j of the
tensor axis works on the i-th share of the batch with the j-th part of the model.

Hybrid sharding is ZeRO-3 within a host and data parallelism across: the G ranks of a host share one copy of the model,
so gathering parameters never leaves the host. Only the G-th part of the gradients that a rank keeps is summed across
the W/G hosts: 2M/G·(W-G)/W bytes from a rank, where ZeRO-3 over all W ranks would send most of its 3M across.
"""

from collections.abc import Collection
from typing import Any

from minidist import ring, train
from minidist.data_parallel import DataParallel
from minidist.engine import Engine, Settings
from minidist.mesh import Mesh
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.options import at_least
from minidist.parallel3d_claims import check_layout, claims, print_closing
from minidist.tensor_parallel import TensorParallel
from minidist.zero1 import ZeRO1
from minidist.zero2 import ZeRO2
from minidist.zero3 import ZeRO3

# ---- hybrid sharding -------------------------------------------------------------------------------------------------


class HybridSharded(ZeRO3):
    """ZeRO-3 among the ranks of a host (comm); gradients are summed with the same shard's on other hosts (across).

    host: world ranks of everyone on this host; what is sent to others is counted.
    """

    def __init__(self, units: list[Unit], settings: Settings, comm: Comm, across: Comm, host: Collection[int]) -> None:
        self.across, self.host, self.left_host = across, host, 0
        super().__init__(units, settings, comm)

    def rows(self, n: int) -> range:
        """All W ranks share out the batch."""
        share = ring.chunk(n, self.across.size * self.comm.size, self.across.rank * self.comm.size + self.comm.rank)
        return range(share.start, share.stop)

    def reduce(self, flat: Flat) -> None:
        """Reduce-scatter within the host; once the step's gradient is complete, all-reduce the shard across hosts."""
        super().reduce(flat)
        if self.last_micro_batch:
            with self.comm.phase("all-reduce across hosts"):
                ring.all_reduce(self.across, flat.grad, flat.grad)

    def step(self) -> None:
        super().step()
        sent = self.comm.ledger.sent.items()
        self.left_host = sum(nbytes for (_, peer), (nbytes, _) in sent if peer not in self.host)

    def counted(self) -> dict[str, Any]:
        return {**super().counted(), "left_host": self.left_host}


# ---- tensor parallelism in front of each -----------------------------------------------------------------------------


class TensorData(TensorParallel, DataParallel):
    """Each data-parallel rank is a group of tensor-parallel ranks."""


class TensorZeRO1(TensorParallel, ZeRO1):
    """Each part of the model has its optimizer state divided among the data-parallel ranks that hold it."""


class TensorZeRO2(TensorParallel, ZeRO2):
    """Gradients as well."""


class TensorZeRO3(TensorParallel, HybridSharded):
    """Parameters as well: among all of the data-parallel ranks, or those of one host."""


def make_engine(units: list[Unit], settings: Settings, comm: Comm, options: train.Options) -> Engine:
    """The engine of one place in the grid. ZeRO-3 over all data-parallel ranks is hybrid sharding on a single host."""
    mesh = Mesh(comm, replicate=options.data_ranks // options.shard, shard=options.shard, tensor=options.tensor)
    tensor: dict[str, Any] = {"tensor": mesh.along("tensor"), "sequence": options.sequence_parallel}
    if options.zero == 3:
        shard, across, host = mesh.along("shard"), mesh.along("replicate"), mesh.along("shard", "tensor").world_ranks
        return TensorZeRO3(units, settings, comm=shard, across=across, host=host, **tensor)
    engine = (TensorData, TensorZeRO1, TensorZeRO2)[options.zero]
    return engine(units, settings, comm=mesh.along("replicate", "shard"), **tensor)


# ---- the run ---------------------------------------------------------------------------------------------------------


def add_options(parser: train.Parser) -> None:
    add = parser.add_argument
    add("--data", dest="data_ranks", type=at_least(1), help="data-parallel ranks; default: all that --tensor leaves")
    add("--text", dest="data", metavar="FILE", help="what other chapters call --data: a UTF-8 text to train on")
    add("--tensor", type=at_least(1), help="ranks that share every layer; default: what --data leaves, or 2")
    add("--zero", type=int, choices=(0, 1, 2, 3), default=1, help="ZeRO's stage, on the data axis; 0: data parallelism")
    add("--shard", type=at_least(1), help="with --zero 3: data-parallel ranks of a host; default: all of them")
    add("--sequence-parallel", action="store_true", help="cut norms, dropout and residuals by positions")
    parser.set_defaults(dropout=0.1, gather_logits=False)  # activations are counted as the papers do


if __name__ == "__main__":
    train.main("parallel3d", __doc__, make_engine, claims, add_options, check_layout, print_closing)
