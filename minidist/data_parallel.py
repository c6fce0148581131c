"""Data parallelism: every rank holds the whole model and works on its share of the batch.

    mpirun -n 4 python -m minidist.data_parallel
    mpirun -n 4 python -m minidist.data_parallel --reduce server

Each rank runs forward and backward on its rows, the gradients are summed over the ranks, and every rank makes the same
update. Two ways to sum: through a master rank, whose links carry N-1 times what anybody else's do; or with a ring
all-reduce for each unit of the model, as soon as the unit's gradient is there and before the backward of the unit below
(gradient buckets: Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.2; the ring in deep learning: Sergeev & Del
Balso, "Horovod", 2018). PyTorch sends a bucket while the next gradients are computed. Here the order and the bytes are
the same, but a rank waits for its messages.

Memory, with mixed precision and Adam: 2Ψ parameters + 2Ψ gradients + 12Ψ optimizer state = 16Ψ bytes on every rank,
however many ranks there are. That is what ZeRO sets out to divide.
"""

from minidist import ring, train
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims, traffic_claims
from minidist.engine import Engine, Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit


class DataParallel(Engine):
    """Everything on every rank; gradients are all-reduced."""

    def __init__(self, units: list[Unit], settings: Settings, comm: Comm, reduce: str = "ring") -> None:
        self.comm, self.shards = comm, comm.size
        self.all_reduce = {"ring": ring.all_reduce, "server": ring.server_all_reduce}[reduce]
        super().__init__(units, settings)

    def rows(self, n: int) -> range:
        """A consecutive share of the n sequences; sizes differ by one at most, and losses are weighted accordingly."""
        share = ring.chunk(n, self.comm.size, self.comm.rank)
        return range(share.start, share.stop)

    def reduce(self, flat: Flat) -> None:
        """Sum a unit's gradient over the ranks, as soon as the step's last backward of the unit has completed it here.
        Losses are weighted by their share of the batch: the sum is the mean."""
        with self.comm.phase("all-reduce gradients"):
            self.all_reduce(self.comm, flat.grad, flat.grad)

    def squared_norm(self) -> float:
        """Every rank has all gradients. Added shard by shard, as ZeRO must, they give the same number, bit for bit."""
        total = 0.0
        for rank in range(self.comm.size):
            shards = [(flat, ring.chunk(flat.padded, self.comm.size, rank)) for flat in self.flats.values()]
            total += sum(self.squares(flat, flat.grad[shard], shard) for flat, shard in shards)
        return total


def claims(run: Run) -> list[Claim]:
    """What the papers say of this run, beside what it held and sent."""
    if run.options.reduce == "ring":
        return [*memory_claims(run, stage=0), *traffic_claims(run, stage=0)]
    all_gradients, n = run.padded * run.precision.bytes, run.ranks
    master, *workers = run.sent_in("all-reduce gradients")
    hot_spot = [Claim("arithmetic", "sent by the master", "2·(N-1)Ψ", (n - 1) * all_gradients, master, "bytes")]
    if workers:
        hot_spot.append(on_each_rank("arithmetic", "sent by a worker", "2·Ψ", all_gradients, workers, "bytes"))
    everything = [run.sent_by(rank) for rank in range(n)]
    promised = [(n - 1) * all_gradients] + [all_gradients] * (n - 1)
    hot_spot.append(on_each_rank("arithmetic", "all that is sent", "", promised, everything, "bytes"))
    return [*memory_claims(run, stage=0), *hot_spot]


def add_options(parser: train.Parser) -> None:
    parser.add_argument("--reduce", choices=("ring", "server"), default="ring", help="over a ring, or through a master")


def make_engine(units: list[Unit], settings: Settings, comm: Comm, options: train.Options) -> DataParallel:
    return DataParallel(units, settings, comm, options.reduce)


if __name__ == "__main__":
    train.main("data_parallel", __doc__, make_engine, claims, add_options)
