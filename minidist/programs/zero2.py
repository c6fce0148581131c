"""ZeRO-2 as a program: its options."""

from dataclasses import dataclass
from typing import Any, ClassVar

from minidist import zero2
from minidist.command import Job
from minidist.programs.data_parallel import OnDataAxis
from minidist.programs.zero1 import ZeRO1Options


@dataclass(frozen=True, kw_only=True)
class ZeRO2Options(ZeRO1Options):
    stage: ClassVar[int] = 2


class ZeRO2Chapter(OnDataAxis[ZeRO2Options]):
    name, doc, options = "zero2", zero2.__doc__, ZeRO2Options
    cases = {"": "--accumulate 2"}

    def make(self, job: Job[ZeRO2Options], comm: Any) -> zero2.ZeRO2:
        return zero2.ZeRO2(job.units, job.settings, comm)


CHAPTER = ZeRO2Chapter()
