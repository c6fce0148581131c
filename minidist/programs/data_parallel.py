"""Data parallelism as a program: its options."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from minidist import UsageError, data_parallel
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


WAYS = ("ring", "server", "overlap")


@dataclass(frozen=True, kw_only=True)
class DataParallelOptions:
    reduce: str = choice(WAYS, "ring", "over a ring, through a master, or while computing", None)
    bucket_size: int | None = buckets()


class DataParallelChapter(OnDataAxis[DataParallelOptions]):
    name, doc, options = "data_parallel", data_parallel.__doc__, DataParallelOptions
    cases = {"ring": "--reduce ring", "server": "--reduce server", "overlap": "--reduce overlap"}

    def checked(self, job: Job[DataParallelOptions]) -> Job[DataParallelOptions]:
        if job.own.reduce == "overlap" and job.own.bucket_size:
            raise UsageError("--reduce overlap sums a whole unit at a time: leave out --bucket-size")
        return super().checked(job)

    def make(self, job: Job[DataParallelOptions], comm: Any) -> data_parallel.DataParallel:
        if job.own.reduce == "overlap":
            return data_parallel.Overlapped(job.units, job.settings, comm)
        return data_parallel.DataParallel(job.units, job.settings, comm, reduce=job.own.reduce)


CHAPTER = DataParallelChapter()
