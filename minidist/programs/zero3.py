"""ZeRO-3 as a program: its options, and what the paper says of its runs."""

from minidist import zero3
from minidist.claims.activations import whole_layers_peak
from minidist.claims.claim import Claim
from minidist.claims.needs import of_data_axis
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims, peak_claim, traffic_claims
from minidist.cli.options import Parser
from minidist.programs.chapter import Chapter
from minidist.programs.data_parallel import add_bucket_size


def add_options(parser: Parser) -> None:
    parser.add_argument("--keep-last", action="store_true", help="keep the last unit gathered from forward to backward")
    add_bucket_size(parser)


def claims(run: Run) -> list[Claim]:
    kept = run.model.read_by_head(run.ranks) if run.options.keep_last else 0
    return [
        *memory_claims(run, stage=3),
        peak_claim(run, "FSDP §3.2.1", "peak gathered", buckets=2),  # parameters and their gradients
        whole_layers_peak(run),
        *traffic_claims(run, stage=3, kept=kept),
    ]


CHAPTER = Chapter(
    name="zero3",
    doc=zero3.__doc__,
    make=lambda job, comm: zero3.ZeRO3(job.units, job.settings, comm, keep_last=job.options.keep_last),
    add_options=add_options,
    claims=claims,
    needs=of_data_axis(3),
    cases={"": "--recompute full"},
)
