"""A chapter as a value, which turns an algorithm into a program.

`minidist/zero3.py` says what ZeRO-3 does. `minidist/programs/zero3.py` says, in one value of a kind below, which
options it has, which engine they ask for, and what the paper promises. All code that runs chapters, or needs
something from each of them (DeepSpeed's door, estimates, tests), asks this value: `find("zero3")`.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NoReturn

from minidist import command, contents
from minidist.claims.claim import Claim
from minidist.claims.published import print_zero_closing
from minidist.claims.run import Run
from minidist.cli.options import Parser, in_one_process
from minidist.command import Job
from minidist.engine import Engine
from minidist.exchange.doors import run
from minidist.formulas.needs import Estimate
from minidist.programs.proof import prove
from minidist.programs.report import say_needs, train_and_report
from minidist.programs.serial import PLAIN, Serial
from minidist.train import Alone, Driver

Counted = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A chapter that does not train in the common loop: MapReduce, the parameter server, the ring."""

    name: str
    parser: Callable[[], Parser]  # its command line
    prepare: Callable[[Parser, Sequence[str], Any], Any]  # parser, arguments, comm: parse and check a command line
    work: Callable[[Any, Any], int]  # comm, and what `prepare` returned; returns the exit status
    needs_no_ranks: Callable[[Sequence[str]], bool] = lambda arguments: False  # whether they run in one process
    cases: Mapping[str, str] = field(default_factory=lambda: {"": ""})  # name: options under which it does other things
    ranks: Sequence[int] = ()  # on which its cases are shown; none: on a few
    watched: Mapping[str, Any] = field(default_factory=dict)  # `run`'s arguments about stopped ranks: mpi/stops.py
    trains: bool = False  # whether it trains the tiny transformer, with the options that all such chapters share

    pooled = False  # whether pools count all that it holds

    def prepared(self, arguments: Sequence[str], comm: Any) -> Any:
        """Parse and check a command line; returns what `work` takes. Raises UsageError for options that cannot work."""
        return self.prepare(self.parser(), arguments, comm)


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """A chapter that trains: how a command line becomes an engine, and what its papers promise of it."""

    name: str
    doc: str | None  # the algorithm's docstring: its first paragraph heads --help; python -OO drops it
    make: Callable[[Job, Any], Driver]  # job, comm: the engine, or what drives one (a pipeline)
    claims: Callable[[Run], list[Claim]]  # what its papers say about a run, and what was counted
    add_options: Callable[[Parser], None] = lambda parser: None  # adds to those that every chapter has
    prepare: Callable[..., Any] = command.prepare  # parser, arguments, ranks: parse and check a command line
    reserve: Callable[[Job, Any], Any] = lambda job, comm: None  # job, comm: what this rank reserves before any begins
    serial: Callable[[Job], Serial | None] = lambda job: PLAIN  # how one process does the same; None: it is one
    needs: Estimate | None = None  # what each rank's device will need, by formula
    closing: Callable[[Run], None] = print_zero_closing  # printed below the claims: letters, figures of its paper
    perform: Callable[["Chapter", Any, Any], int] = lambda chapter, comm, job: chapter.train(comm, job)
    needs_no_ranks: Callable[[Sequence[str]], bool] = lambda arguments: False
    cases: Mapping[str, str] = field(default_factory=lambda: {"": ""})  # name: options under which it does other things
    ranks: Sequence[int] = ()  # on which its cases are shown; none: on a few

    watched: ClassVar[Mapping[str, Any]] = {}  # `run`'s defaults
    trains = pooled = True

    def parser(self) -> Parser:
        """The chapter's command line."""
        made = command.parser(self.doc or "", self.name)
        self.add_options(made)
        return made

    def job(self, arguments: Sequence[str], ranks: int, **how: Any) -> Any:
        """The job that a command line asks for. Raises UsageError for options that cannot work."""
        return self.prepare(self.parser(), arguments, ranks, **how)

    def prepared(self, arguments: Sequence[str], comm: Any) -> Any:
        job = self.job(arguments, comm.size)
        job.reserved = self.reserve(job, comm)
        return job

    def work(self, comm: Any, job: Any) -> int:
        """Do what a job asks for, on every rank; returns the exit status. Most chapters train."""
        return self.perform(self, comm, job)

    def driver(self, comm: Any, job: Job) -> Driver:
        """Make the driver; first print how much device memory it will need, and prove its numbers."""
        say_needs(job, comm, self.needs)
        if serial := self.serial(job):
            job.proof = prove(comm, job, self.make, serial)
        return self.make(job, comm)

    def train(
        self, comm: Any, job: Job, driver: Driver | None = None, count: Callable[[Job, Engine], Counted] | None = None
    ) -> int:
        """Train and report; returns the exit status. count: other figures to count after training."""
        made = driver or self.driver(comm, job)
        more = partial(count, job, made.engine) if count else dict
        return train_and_report(job, made, comm, self.claims, self.closing, more)


def find(name: str) -> Any:
    """A Chapter or a Program, by its name."""
    return importlib.import_module(f"minidist.programs.{name}").CHAPTER


def find_all() -> dict[str, Any]:
    """All chapters, by name."""
    return {entry.name: find(entry.name) for entry in contents.CHAPTERS}


def start(chapter: Chapter | Program) -> NoReturn:
    """Run a chapter on the ranks that mpirun has started, on --ranks of this process, or on one."""
    arguments = sys.argv[1:]
    if chapter.needs_no_ranks(arguments):
        sys.exit(in_one_process(lambda: run_alone(chapter, arguments)))
    run(
        prepare=lambda comm: chapter.prepared(arguments, comm),
        main=chapter.work,
        module=f"minidist.{chapter.name}",
        **chapter.watched,
    )


def run_alone(chapter: Chapter | Program, arguments: Sequence[str]) -> int:
    """Run a chapter in this process; returns the exit status."""
    return chapter.work(Alone(), chapter.prepared(arguments, Alone()))
