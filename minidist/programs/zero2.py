"""ZeRO-2 as a program: its options, and what the paper says of its runs."""

from minidist import zero2
from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims, peak_claim, traffic_claims
from minidist.formulas.needs import needs
from minidist.programs.chapter import Chapter
from minidist.programs.data_parallel import add_bucket_size


def claims(run: Run) -> list[Claim]:
    peak = peak_claim(run, "arithmetic", "peak of buckets", buckets=1)
    return [*memory_claims(run, stage=2), peak, peak_of_layers(run), *traffic_claims(run)]


CHAPTER = Chapter(
    name="zero2",
    doc=zero2.__doc__,
    make=lambda job, comm: zero2.ZeRO2(job.units, job.settings, comm),
    add_options=add_bucket_size,
    claims=claims,
    needs=needs,
    cases={"": "--accumulate 2"},
)
