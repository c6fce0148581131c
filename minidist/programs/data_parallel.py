"""Data parallelism as a program: its options, and what the papers say of its runs."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from minidist import UsageError, data_parallel
from minidist.claims import published
from minidist.claims.activations import peak_of_layers
from minidist.claims.claim import Claim, on_each_rank
from minidist.claims.run import Run
from minidist.claims.zero import buffer_claims, memory_claims, traffic_claims
from minidist.cli.fields import choice
from minidist.command import Job
from minidist.formulas.needs import needs
from minidist.programs.axes import buckets
from minidist.programs.chapter import Chapter


class Buckets(Protocol):
    """Own options of every chapter on the data axis."""

    @property
    def bucket_size(self) -> int | None: ...


B = TypeVar("B", bound=Buckets)


class OnDataAxis(Chapter[B]):
    """A chapter whose gradients may be summed in buckets."""

    needs, letters = staticmethod(needs), staticmethod(published.zero_letters)
    closing, published = staticmethod(published.print_zero_closing), staticmethod(published.print_zero_tables)

    def checked(self, job: Job[B]) -> Job[B]:
        return replace(job, settings=replace(job.settings, bucket_size=job.own.bucket_size))


WAYS = ("ring", "server", "overlap")


@dataclass(frozen=True, kw_only=True)
class DataParallelOptions:
    reduce: str = choice(WAYS, "ring", "over a ring, through a master, or while computing", None)
    bucket_size: int | None = buckets()


def claims(run: Run) -> list[Claim]:
    """With the ring, ZeRO's formulas for stage 0; with a master, the load of the master and of the workers."""
    held = [*memory_claims(run, stage=0), *buffer_claims(run), peak_of_layers(run)]
    if run.reduce != "server":
        return [*held, *traffic_claims(run)]
    all_gradients, n = run.model.parameters(run.ranks) * run.gradient_bytes, run.ranks
    master, *workers = run.sent_in("all-reduce gradients")
    hot_spot = [Claim("arithmetic", "sent by the master", "2·(N-1)Ψ", (n - 1) * all_gradients, master, "bytes")]
    if workers:
        hot_spot.append(on_each_rank("arithmetic", "sent by a worker", "2·Ψ", all_gradients, workers, "bytes"))
    everything = [run.sent_by(rank) for rank in range(n)]
    promised = [(n - 1) * all_gradients] + [all_gradients] * (n - 1)
    hot_spot.append(on_each_rank("arithmetic", "total sent", "", promised, everything, "bytes"))
    hot_spot.append(on_each_rank("arithmetic", "total received", "", promised, run.received, "bytes"))
    return [*held, *hot_spot]


class DataParallelChapter(OnDataAxis[DataParallelOptions]):
    name, doc, options = "data_parallel", data_parallel.__doc__, DataParallelOptions
    claims = staticmethod(claims)
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
