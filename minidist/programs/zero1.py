"""ZeRO-1 as a program: its options, and what the paper says of its runs."""

from minidist import zero1
from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim
from minidist.claims.run import Run
from minidist.claims.zero import buffer_claims, memory_claims, traffic_claims
from minidist.formulas.needs import needs
from minidist.programs.chapter import Chapter
from minidist.programs.data_parallel import add_bucket_size


def claims(run: Run) -> list[Claim]:
    held = [*memory_claims(run, stage=1), *buffer_claims(run), peak_of_layers(run)]
    return [*held, *traffic_claims(run)]


CHAPTER = Chapter(
    name="zero1",
    doc=zero1.__doc__,
    make=lambda job, comm: zero1.ZeRO1(job.units, job.settings, comm),
    add_options=add_bucket_size,
    claims=claims,
    needs=needs,
)
