"""ZeRO-Infinity as a program: its options."""

from dataclasses import dataclass, replace
from typing import Any

from minidist import UsageError, infinity
from minidist.cli.fields import first_given, flag, option, path_to
from minidist.cli.options import memory_size
from minidist.cli.paths import check_room
from minidist.cli.shared import FileOptions
from minidist.command import Job
from minidist.engine import Settings
from minidist.memory.files import SwapFile
from minidist.mpi.comm import Comm
from minidist.mpi.environment import local_ranks
from minidist.nn.layers import Unit, count_parameters
from minidist.programs.chapter import Chapter
from minidist.system import unix


@dataclass(frozen=True, kw_only=True)
class InfinityOptions:
    zero: int = option(3, int, None, "the stage: below 3 parameters stay on the devices", choices=(1, 2, 3))
    disk: str | None = path_to("DIR", "a folder for the files; default: a temporary one")
    disk_memory: int | None = option(None, memory_size, "SIZE", "of a rank's files, at most")
    bandwidth_table: bool = flag("how fast N disks bring a unit, and how fast one does")


def check_table(files: FileOptions) -> None:
    """Raise UsageError for options of a training."""
    if asked := first_given(files, "save", "load", "export", "sample", "memory_plot", "witness"):
        raise UsageError(f"--bandwidth-table trains nothing: leave out {asked}")


OTHER_FILES = 64  # MPI's, those of messages, and those that are open while blocks are read and written


def swap_file(units: list[Unit], settings: Settings, option: str, folder: str | None, comm: Comm) -> SwapFile:
    """This rank's file. Raises UsageError if it cannot be made in the folder, if its disk has too little room, or if
    this process may not open it often enough: each array in it keeps it open."""
    swap = SwapFile(option, folder)
    opened = 4 * sum(len(unit.flats) for unit in units)  # master copy, momentum, variance, and at stage 3 parameters
    needed, allowed = opened + OTHER_FILES, unix.limit("RLIMIT_NOFILE")
    if allowed < needed:
        raise UsageError(
            f"ulimit -n allows {allowed} open files, and {needed} are needed: one for each array in a file"
        )
    nbytes = 14 if settings.precision.mixed else 4 * settings.precision.bytes  # per parameter, about
    check_room(option, swap.folder, nbytes * count_parameters(units) * local_ranks() // comm.size)
    return swap


class InfinityChapter(Chapter[InfinityOptions]):
    name, doc, options = "infinity", infinity.__doc__, InfinityOptions
    states = 2
    cases = {f"ZeRO-{stage}": f"--zero {stage}" for stage in (2, 3)}

    def checked(self, job: Job[InfinityOptions]) -> Job[InfinityOptions]:
        if job.own.bandwidth_table:
            check_table(job.files)
        return replace(job, settings=replace(job.settings, disk_capacity=job.own.disk_memory))

    def reserve(self, job: Job[InfinityOptions], comm: Comm) -> SwapFile:
        return swap_file(job.units, job.settings, "--disk", job.own.disk, comm)

    def make(self, job: Job[InfinityOptions], comm: Comm) -> infinity.Infinity:
        return infinity.ENGINES[job.own.zero](job.units, job.settings, comm, job.reserved)

    def begin(self, comm: Any, prepared: Job[InfinityOptions]) -> int:
        with prepared.reserved:  # gives the file's room back, also if the model does not fit
            return super().begin(comm, prepared)

    def work(self, comm: Any, prepared: Job[InfinityOptions]) -> int:
        """Measure the disks' bandwidth, or train."""
        if not prepared.own.bandwidth_table:
            return self.train(comm, prepared)
        from minidist.claims.infinity import bandwidth_table

        ways = infinity.fetch_shards, infinity.fetch_from_owner
        return bandwidth_table(comm, prepared.reserved, *ways, prepared.files.json)


CHAPTER = InfinityChapter()
