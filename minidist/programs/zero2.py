"""ZeRO-2 as a program: its options, and what the paper says of its runs."""

from dataclasses import dataclass
from typing import Any, ClassVar

from minidist import zero2
from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim
from minidist.claims.run import Run
from minidist.claims.zero import memory_claims, peak_claim, traffic_claims
from minidist.command import Job
from minidist.programs.data_parallel import OnDataAxis
from minidist.programs.zero1 import ZeRO1Options


@dataclass(frozen=True, kw_only=True)
class ZeRO2Options(ZeRO1Options):
    stage: ClassVar[int] = 2


def claims(run: Run) -> list[Claim]:
    peak = peak_claim(run, "arithmetic", "peak of buckets", buckets=1)
    return [*memory_claims(run, stage=2), peak, peak_of_layers(run), *traffic_claims(run)]


class ZeRO2Chapter(OnDataAxis[ZeRO2Options]):
    name, doc, options = "zero2", zero2.__doc__, ZeRO2Options
    claims = staticmethod(claims)
    cases = {"": "--accumulate 2"}

    def make(self, job: Job[ZeRO2Options], comm: Any) -> zero2.ZeRO2:
        return zero2.ZeRO2(job.units, job.settings, comm)


CHAPTER = ZeRO2Chapter()
