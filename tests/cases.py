"""The command lines of all chapters that train. `CHAPTER.cases` is the only table of them: a new chapter is in every
matrix of tests by that."""

import io
import shlex
from collections.abc import Iterable
from contextlib import redirect_stdout
from functools import cache, partial
from typing import Any

from minidist import UsageError
from minidist.claims.audit import fill_line, list_lines
from minidist.exchange.one_process import run_ranks
from minidist.mpi.comm import Comm
from minidist.programs.chapter import find, find_all
from minidist.text import data

RANKS = (1, 2, 3, 4, 8)
TEXT = data.load(None, 1)  # held: a job that nobody holds gives its text back, and the next one reads it again
TRAINING: dict[str, Any] = {name: of for name, of in find_all().items() if of.trains and name != "train"}


class OfRanks:
    """What a command line asks of a Comm before it works."""

    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size


@cache
def job_of(line: str, ranks: int) -> Any:
    """What a chapter makes of its line; None if it refuses it on that many ranks."""
    name, *options = line.split()
    chapter = find(name)
    try:
        return chapter.job(options, ranks) if hasattr(chapter, "job") else chapter.prepared(options, OfRanks(ranks))
    except UsageError:
        return None


@cache
def every_case(more: str = "") -> list[tuple[int, str]]:
    """(ranks, line) of each case of each chapter, on all numbers of ranks on which it works, or on those that it needs.
    more: options after its own."""
    return [
        (n, line)
        for name, cases in list_lines(TRAINING).items()
        for n in TRAINING[name].ranks or RANKS
        for line in (fill_line(name, f"{case} {more}".strip(), n) for case in cases.values())
        if job_of(line, n)
    ]


def unnamed(lines: Iterable[str]) -> list[tuple[int, str]]:
    """Of the chapters that none of these lines names, a case each, on four ranks or the most that it needs: so a table
    of chosen lines forgets no new chapter."""
    named = {line.split()[0] for line in lines}
    first = {line.split()[0]: (n, line) for n, line in reversed(every_case()) if n == max(ranks_of(line))}
    return [of for name, of in first.items() if name not in named]


def ranks_of(line: str) -> tuple[int, ...]:
    return tuple(TRAINING[line.split()[0]].ranks or (4,))


def work(comm: Comm, line: str) -> int:
    """A chapter's line on a rank; its exit status."""
    name, *options = shlex.split(line)
    chapter = find(name)
    status: int = chapter.work(comm, chapter.prepared(options, comm)) or 0
    return status


def status_of(line: str, n: int) -> int:
    """The exit status of a chapter's line, which all ranks, here in this process, agree on."""
    (status,) = set(run_ranks(partial(work, line=line), n))
    return status


def printed_by(line: str, n: int) -> str:
    """What a chapter prints on n ranks of this process; its status must be 0."""
    with redirect_stdout(io.StringIO()) as printed:
        assert status_of(line, n) == 0, printed.getvalue()
    return printed.getvalue()
