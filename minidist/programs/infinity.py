"""ZeRO-Infinity as a program: its options, and what the paper says of its runs (`minidist/claims/infinity.py`)."""

from collections.abc import Sequence
from typing import Any

from minidist import UsageError, command, infinity, unix
from minidist.claims.infinity import bandwidth_table, claims, print_closing
from minidist.claims.needs import Needs
from minidist.claims.run import Asked
from minidist.cli.options import Parser, memory_size, path_name
from minidist.cli.paths import check_room
from minidist.engine import Settings
from minidist.grid import shares
from minidist.memory.files import SwapFile
from minidist.mpi.comm import Comm
from minidist.mpi.environment import local_ranks
from minidist.nn.layers import Unit, count_parameters
from minidist.programs.chapter import Chapter


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--zero", type=int, choices=(1, 2, 3), default=3, help="the stage: below 3 parameters stay on the devices")
    add("--disk", type=path_name, metavar="DIR", help="a folder for the files; default: a temporary one")
    add("--disk-memory", type=memory_size, metavar="SIZE", help="of a rank's files, at most")
    add("--bandwidth-table", action="store_true", help="how fast N disks bring a unit, and how fast one does")


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Raises UsageError for options that cannot work."""
    job = command.prepare(made, arguments, ranks, states=2, **how)
    if job.options.bandwidth_table:
        for option in ("save", "load", "export", "sample", "memory_plot", "witness"):
            if vars(job.options)[option]:
                raise UsageError(f"--bandwidth-table trains nothing: leave out --{option.replace('_', '-')}")
    job.settings.disk_capacity = job.options.disk_memory
    return job


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


def swap_file_of(job: command.Job, comm: Comm) -> SwapFile:
    return swap_file(job.units, job.settings, "--disk", job.options.disk, comm)


def perform(chapter: Chapter, comm: Comm, job: command.Job) -> int:
    """Measure the disks' bandwidth, or train; the file's room is given back at the end."""
    with job.reserved as swap:  # also around making the model, which may not fit
        if job.options.bandwidth_table:
            ways = infinity.fetch_shards, infinity.fetch_from_owner
            return bandwidth_table(comm, swap, *ways, job.options.json)
        return chapter.train(comm, job, chapter.driver(comm, job))


def needs(asked: Asked) -> list[Needs]:
    """What a run will need of each rank's device: of stage 3's parameters two shards, of the largest unit."""
    p, psi, largest = asked.bytes.stored, asked.model.parameters(asked.ranks), max(asked.model.units(asked.ranks))
    parameters = 2 * p * largest / asked.ranks if asked.zero == 3 else p * psi
    states = {"parameters": parameters, "gradients": p * psi if asked.zero == 1 else 0, "optimizer": 0}
    return [need.but(**states) for need in shares.needs(asked)]


CHAPTER = Chapter(
    name="infinity",
    doc=infinity.__doc__,
    make=lambda job, comm: infinity.ENGINES[job.options.zero](job.units, job.settings, comm, job.reserved),
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    closing=print_closing,
    needs=needs,
    reserve=swap_file_of,
    perform=perform,
    cases={f"ZeRO-{stage}": f"--zero {stage}" for stage in (2, 3)},
)
