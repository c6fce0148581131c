"""ZeRO-1 as a program: its options."""

from dataclasses import dataclass
from typing import Any, ClassVar

from minidist import zero1
from minidist.command import Job
from minidist.programs.axes import buckets
from minidist.programs.data_parallel import OnDataAxis


@dataclass(frozen=True, kw_only=True)
class ZeRO1Options:
    stage: ClassVar[int] = 1
    bucket_size: int | None = buckets()


class ZeRO1Chapter(OnDataAxis[ZeRO1Options]):
    name, doc, options = "zero1", zero1.__doc__, ZeRO1Options

    def make(self, job: Job[ZeRO1Options], comm: Any) -> zero1.ZeRO1:
        return zero1.ZeRO1(job.units, job.settings, comm)


CHAPTER = ZeRO1Chapter()
