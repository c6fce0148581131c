"""How tests start ranks: in the tests' own process, and over MPI.

`launch` is that of `minidist.launch.launcher`, by either door. What is about numbers, bytes, claims and messages does
not depend on the door, so most of it runs in this process, which takes a third of the time. A part of all jobs, another
one at every commit, runs over MPI; with `-m slow`, or with MINIDIST_DOOR=mpi, all of them do.
"""

import contextvars
import io
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache, partial
from typing import Any
from unittest import mock

from minidist.exchange.by_rules import run_by_rules
from minidist.exchange.one_process import World
from minidist.exchange.rules import Rules
from minidist.launch import launcher
from minidist.launch.job import JobOutcome, RankResult
from minidist.launch.target_function import find_function
from minidist.mpi import environment
from minidist.mpi.comm import Comm, Ledger
from minidist.mpi.rank import explain
from minidist.text import data
from sampling import part_of_this_run

DOOR = "MINIDIST_DOOR"
OVER_MPI = 16  # one job in this many runs over MPI

Text = dict[str, io.StringIO]  # "stdout" and "stderr" of a rank
_printed: contextvars.ContextVar[Text] = contextvars.ContextVar("printed")  # a greenlet has its own


def launch(target: str, n: int, *args: Any, timeout: float = 60.0, **kwargs: Any) -> JobOutcome:
    """Call `target` on n ranks, by one of the two doors."""
    if by_mpi(target, n, *args):
        return launcher.launch("ranks:be_rank", n, target, *args, timeout=timeout, **kwargs)
    return in_this_process(find_function(target), n, *args, **kwargs)


def by_mpi(*job: Any) -> bool:
    if "--witness" in repr(job):  # NumPy's account is that of a process
        return True
    asked = os.environ.get(DOOR)
    return asked == "mpi" if asked else zlib.crc32(repr((part_of_this_run(), *job)).encode()) % OVER_MPI == 0


def be_rank(comm: Comm, target: str, *args: Any, **kwargs: Any) -> Any:
    """What a rank of MPI calls."""
    with text_read_once():
        return find_function(target)(comm, *args, **kwargs)


def text_read_once() -> Any:
    return mock.patch("minidist.text.data.load", cache(data.load))


def in_this_process(function: Callable[..., Any], n: int, *args: Any, **kwargs: Any) -> JobOutcome:
    """The job as a launcher reports it."""
    world, begun, texts = World(n), time.monotonic(), texts_of(n)
    status, report, values = "ok", f"The job finished on {n} ranks.", [None] * n
    with mock.patch.object(environment, "ranks_here", n), text_read_once(), told_apart():
        try:
            be = partial(be_heard, function, texts)
            values = world.turns.run(world.rank_of(lambda comm: be(comm, *args, **kwargs)), range(n))
        except Exception as error:
            status, report = "failed", f"rank {world.turns.running} failed:\n{explain(error)}"
    ranks = [result_of(world.ledgers[rank], status, values[rank], texts[rank]) for rank in range(n)]
    return JobOutcome(status, ranks, time.monotonic() - begun, report)


def by_rules(function: Callable[..., Any], n: int, rules: Rules, *args: Any) -> list[Any]:
    """What each rank returns, where messages go by these rules."""
    be, texts = partial(be_heard, function), texts_of(n)
    with text_read_once(), told_apart():
        return run_by_rules(lambda comm: be(texts, comm, *args), n, rules)


def texts_of(n: int) -> list[Text]:
    return [{name: io.StringIO() for name in ("stdout", "stderr")} for _ in range(n)]


def be_heard(function: Callable[..., Any], texts: list[Text], comm: Comm, *args: Any, **kwargs: Any) -> Any:
    """A rank whose words are kept apart from the others'."""
    _printed.set(texts[comm.rank])
    return function(comm, *args, **kwargs)


@contextmanager
def told_apart() -> Iterator[None]:
    with redirect_stdout(OfRank("stdout")), redirect_stderr(OfRank("stderr")):
        yield


def result_of(ledger: Ledger, status: str, value: Any, texts: Text) -> RankResult:
    sent: Any = {key: tuple(counts) for key, counts in ledger.sent.items()}
    result = RankResult(finished=status == "ok", value=value, sent=sent, control=ledger.control)
    result.stdout, result.stderr = texts["stdout"].getvalue(), texts["stderr"].getvalue()
    return result


class OfRank(io.TextIOBase):
    """Standard output, or standard error, of the rank that runs."""

    def __init__(self, name: str) -> None:
        self.name = name

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return _printed.get()[self.name].write(text)


@contextmanager
def printed() -> Iterator[io.StringIO]:
    """What this rank prints in the block, whatever door it came by. Others of this process may print meanwhile."""
    mine = _printed.get(None)
    if mine is None:
        with redirect_stdout(io.StringIO()) as text:
            yield text
        return
    outer = mine["stdout"]
    mine["stdout"] = text = io.StringIO()
    try:
        yield text
    finally:
        mine["stdout"] = outer
