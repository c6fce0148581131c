"""How a job of ranks ended, whatever started it: `launcher.py` over MPI, or a router of messages without it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from minidist.mpi.words import killed_by

LAST = 4_000  # bytes of each stream of a rank that an observer may see

# An observer while ranks run: called many times a second, with a function that reads the last output of each rank.
Watch = Callable[[Callable[[], list[str]]], None]


class JobFailed(RuntimeError):
    """The job did not end well on every rank; the message is its report."""


@dataclass
class RankResult:
    """What one rank did."""

    finished: bool = False  # its function returned
    value: Any = None  # what the function returned
    error: str | None = (
        None  # the traceback, or how it ended, in words; None for a rank that was only ended with the rest
    )
    error_type: str | None = None  # "ValueError"; "SystemExit" if it called sys.exit; None if it did not raise
    state: str = ""  # in one line, as the report says it: "finished", "ended because rank 2 failed", ...
    where: str = ""  # if the job hung: "exercise.py:31 in exchange"
    stack: str = ""  # if the job hung: all its frames
    awaited: list[int] = field(default_factory=list)  # if the job hung: the ranks that it waits for
    stdout: str = ""
    stderr: str = ""
    sent: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # (phase, peer) -> (bytes, messages)
    control: tuple[int, int] = (0, 0)  # (bytes, messages)


@dataclass
class JobOutcome:
    """How a job ended. `status` is one of

    ok        every rank finished
    failed    a rank raised an exception or called sys.exit
    machine   the ranks could not be started, for example without room in /dev/shm: not the function's fault
    killed    a rank disappeared: it was killed, it crashed, or it called os._exit
    hung      the ranks were ended at the timeout, or when it was certain that they would wait for ever
    interrupted  the observer interrupted the job
    """

    status: str
    ranks: list[RankResult]
    seconds: float  # from before mpiexec started until the last process had ended
    report: str  # what happened, for people

    @property
    def values(self) -> list[Any]:
        """What each rank returned, in order of rank. Raises JobFailed if the job did not end well."""
        if self.status != "ok":
            raise JobFailed(self.report)
        return [rank.value for rank in self.ranks]

    @property
    def output(self) -> str:
        """What the ranks printed, rank by rank."""
        return by_rank(rank.stdout + rank.stderr for rank in self.ranks)


def by_rank(printed: Iterable[str]) -> str:
    """What each rank printed, under a line that names the rank. Ranks that printed nothing are left out."""
    named = enumerate(text.rstrip() for text in printed)
    return "\n".join(f"---- rank {number} ----\n{text}" for number, text in named if text)


def blame(job: JobOutcome, first: int, verb: str) -> None:
    """Write into the job's report that rank `first` ended it, and how each other rank ended."""
    cause = job.ranks[first]
    cause.state = verb
    lines = [f"rank {first} {verb}:", str(cause.error)]
    if job.status != "failed" and cause.stderr:
        lines.append(f"The end of its stderr:\n{cause.stderr[-2000:].rstrip()}")
    for number, rank in enumerate(job.ranks):
        if number == first:
            continue
        if rank.error_type:
            rank.state = f"failed too, with {rank.error_type}"
        elif not rank.finished:
            rank.state, rank.error = f"ended because rank {first} {verb}", None
        lines.append(f"rank {number}: {rank.state}")
    job.report = "\n".join(lines)


def describe_exit(code: int) -> str:
    """How a process ended, by its exit code or minus the signal."""
    if code < 0:
        return f"it was {killed_by(-code)}"
    return f"its process ended with status {code} before the function returned, as os._exit({code}) does"
