"""ZeRO-1 as a program: its options, and what the paper says of its runs."""

from dataclasses import dataclass
from typing import Any, ClassVar

from minidist import zero1
from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim
from minidist.claims.run import Run
from minidist.claims.zero import buffer_claims, memory_claims, traffic_claims
from minidist.command import Job
from minidist.programs.axes import buckets
from minidist.programs.data_parallel import OnDataAxis


@dataclass(frozen=True, kw_only=True)
class ZeRO1Options:
    stage: ClassVar[int] = 1
    bucket_size: int | None = buckets()


def claims(run: Run) -> list[Claim]:
    held = [*memory_claims(run, stage=1), *buffer_claims(run), peak_of_layers(run)]
    return [*held, *traffic_claims(run)]


class ZeRO1Chapter(OnDataAxis[ZeRO1Options]):
    name, doc, options = "zero1", zero1.__doc__, ZeRO1Options
    claims = staticmethod(claims)

    def make(self, job: Job[ZeRO1Options], comm: Any) -> zero1.ZeRO1:
        return zero1.ZeRO1(job.units, job.settings, comm)


CHAPTER = ZeRO1Chapter()
