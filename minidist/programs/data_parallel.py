"""Data parallelism as a program: its options, and what the papers say of its runs."""

from minidist import data_parallel
from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.run import Run
from minidist.claims.zero import buffer_claims, memory_claims, traffic_claims
from minidist.cli.options import Parser, at_least
from minidist.formulas.needs import needs
from minidist.programs.chapter import Chapter


def add_options(parser: Parser) -> None:
    parser.add_argument("--reduce", choices=("ring", "server"), default="ring", help="over a ring, or through a master")
    add_bucket_size(parser)


def add_bucket_size(parser: Parser) -> None:
    """Add --bucket-size, which every chapter on the data axis has; in elements, like DeepSpeed's reduce_bucket_size."""
    parser.add_argument(
        "--bucket-size", type=at_least(1), metavar="N", help="sum N elements at once; default: a unit's"
    )


def claims(run: Run) -> list[Claim]:
    """With the ring, ZeRO's formulas for stage 0; with a master, the load of the master and of the workers."""
    held = [*memory_claims(run, stage=0), *buffer_claims(run), peak_of_layers(run)]
    if run.reduce == "ring":
        return [*held, *traffic_claims(run)]
    all_gradients, n = run.model.parameters(run.ranks) * run.bytes.stored, run.ranks
    master, *workers = run.sent_in("all-reduce gradients")
    hot_spot = [Claim("arithmetic", "sent by the master", "2·(N-1)Ψ", (n - 1) * all_gradients, master, "bytes")]
    if workers:
        hot_spot.append(on_each_rank("arithmetic", "sent by a worker", "2·Ψ", all_gradients, workers, "bytes"))
    everything = [run.sent_by(rank) for rank in range(n)]
    promised = [(n - 1) * all_gradients] + [all_gradients] * (n - 1)
    hot_spot.append(on_each_rank("arithmetic", "all that is sent", "", promised, everything, "bytes"))
    hot_spot.append(on_each_rank("arithmetic", "all that arrives", "", promised, run.received, "bytes"))
    return [*held, *hot_spot]


CHAPTER = Chapter(
    name="data_parallel",
    doc=data_parallel.__doc__,
    make=lambda job, comm: data_parallel.DataParallel(job.units, job.settings, comm, reduce=job.options.reduce),
    add_options=add_options,
    claims=claims,
    needs=needs,
    cases={"ring": "--reduce ring", "server": "--reduce server"},
)
