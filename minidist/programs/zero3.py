"""ZeRO-3 as a program: its options."""

from dataclasses import dataclass
from typing import Any, ClassVar

from minidist import UsageError, zero3
from minidist.cli.fields import first_given, flag, part, whole
from minidist.command import Job
from minidist.programs.axes import buckets
from minidist.programs.data_parallel import OnDataAxis
from minidist.zr.limits import Limits, limited


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """The limits that DeepSpeed's stage 3 has, in elements."""

    persist: int = whole("N", "do not divide parameters of at most N elements", 0, least=0)
    ahead: int = whole("N", "gather up to N elements ahead, in whole units", 0, least=0)
    live: int | None = whole("N", "but not if more than N would be gathered; default: any", least=0)

    @property
    def asked(self) -> Limits:
        return Limits(self.persist, self.ahead, self.live)


@dataclass(frozen=True, kw_only=True)
class ZeRO3Options:
    stage: ClassVar[int] = 3
    keep_last: bool = flag("keep the last unit gathered from forward to backward")
    limits: LimitOptions = part(LimitOptions)
    bucket_size: int | None = buckets()


def check_limits(limits: LimitOptions, recompute: str, stage: int = 3, keep_last: bool = False) -> None:
    """Raise UsageError for limits without effect, or if parameters are gathered in an order that no formula knows."""
    asked = first_given(limits, "persist", "ahead")
    if limits.live is not None and not limits.ahead:
        raise UsageError("--live limits what is gathered ahead: use it with --ahead")
    if asked and stage < 3:
        raise UsageError(f"{asked} is of --zero 3: stage {stage} divides no parameters")
    if asked and keep_last:
        raise UsageError(f"{asked} and --keep-last: use one of them")
    if limits.ahead and recompute not in ("none", "selective", "full"):
        raise UsageError(f"--ahead needs --recompute none, selective or full, not {recompute}")


class ZeRO3Chapter(OnDataAxis[ZeRO3Options]):
    name, doc, options = "zero3", zero3.__doc__, ZeRO3Options
    cases = {"": "--recompute full"}

    def checked(self, job: Job[ZeRO3Options]) -> Job[ZeRO3Options]:
        check_limits(job.own.limits, job.training.recompute, keep_last=job.own.keep_last)
        return super().checked(job)

    def make(self, job: Job[ZeRO3Options], comm: Any) -> zero3.ZeRO3:
        engine = limited(zero3.ZeRO3, job.own.limits.asked)
        return engine(job.units, job.settings, comm, keep_last=job.own.keep_last)


CHAPTER = ZeRO3Chapter()
