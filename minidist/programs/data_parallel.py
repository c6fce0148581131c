"""Data parallelism as a program: its options."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from minidist import data_parallel
from minidist.cli.fields import choice
from minidist.command import Job
from minidist.programs.axes import buckets
from minidist.programs.chapter import Chapter


class Buckets(Protocol):
    """Own options of every chapter on the data axis."""

    @property
    def bucket_size(self) -> int | None: ...


B = TypeVar("B", bound=Buckets)


class OnDataAxis(Chapter[B]):
    """A chapter whose gradients may be summed in buckets."""

    def checked(self, job: Job[B]) -> Job[B]:
        return replace(job, settings=replace(job.settings, bucket_size=job.own.bucket_size))


@dataclass(frozen=True, kw_only=True)
class DataParallelOptions:
    reduce: str = choice(("ring", "server"), "ring", "over a ring, or through a master", None)
    bucket_size: int | None = buckets()


class DataParallelChapter(OnDataAxis[DataParallelOptions]):
    name, doc, options = "data_parallel", data_parallel.__doc__, DataParallelOptions
    cases = {"ring": "--reduce ring", "server": "--reduce server"}

    def make(self, job: Job[DataParallelOptions], comm: Any) -> data_parallel.DataParallel:
        return data_parallel.DataParallel(job.units, job.settings, comm, reduce=job.own.reduce)


CHAPTER = DataParallelChapter()
