"""A chapter as a value, which turns an algorithm into a program.

`minidist/zero3.py` says what ZeRO-3 does. `minidist/programs/zero3.py` says, in a class of a kind below, which options
it has, and which engine they ask for; its one value is CHAPTER. All code that runs chapters, or needs something from
each of them (DeepSpeed's front end, estimates, tests), asks this value: `find("zero3")`. What the paper promises is a
value, too, PROMISES in `minidist/claims/zero3.py`, which is loaded where it is used.

From the command line to the engine an option goes one way. `read` parses, once, into frozen dataclasses: model,
training, files, and the chapter's own. `layout` says how these lay out the ranks. `command.prepare` checks what all
chapters share, and makes a Job. `make` makes the engine from the Job.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn

from minidist import command, contents
from minidist.cli.fields import fill, parse
from minidist.cli.loaded import line_of
from minidist.cli.options import Parser, in_one_process
from minidist.cli.shared import Line, Own, fill_shared
from minidist.command import Job
from minidist.engine import Engine
from minidist.exchange.doors import run
from minidist.layout import Layout
from minidist.nn.optim import Optimizer
from minidist.programs.run import train_and_report
from minidist.programs.serial import PLAIN, Serial
from minidist.train import Alone, Driver

if TYPE_CHECKING:
    from minidist.claims.promises import Estimate, Promises
    from minidist.claims.run import Run

Counted = dict[str, Any]


class Program(Generic[Own]):
    """A chapter that does not train in the common loop: MapReduce, the parameter server, the ring."""

    name: ClassVar[str]
    doc: ClassVar[str | None]  # the algorithm's docstring: its first paragraph heads --help; python -OO drops it
    options: type[Own]  # its own
    cases: ClassVar[Mapping[str, str]] = {"": ""}  # name: options under which it does other things
    ranks: ClassVar[Sequence[int]] = ()  # on which its cases are shown; none: on a few
    watched: ClassVar[Mapping[str, Any]] = {}  # `run`'s arguments about stopped ranks: mpi/stops.py
    trains: ClassVar[bool] = False  # whether it trains the tiny transformer, with the options that all such share
    pooled: ClassVar[bool] = False  # whether pools count all that it holds

    def parser(self) -> Parser:
        """Its command line."""
        made = Parser(self.name, self.doc or "")
        fill(made, self.options)
        return made

    def prepared(self, arguments: Sequence[str], comm: Any) -> Any:
        """Parse and check a command line; returns what `work` takes. Raises UsageError for options that cannot work."""
        raise NotImplementedError

    def work(self, comm: Any, prepared: Any) -> int:
        """Do what was asked, on every rank; returns the exit status."""
        raise NotImplementedError

    def begin(self, comm: Any, prepared: Any) -> int:
        """Do it, or what an option asks for instead."""
        return self.work(comm, prepared)

    def needs_no_ranks(self, arguments: Sequence[str]) -> bool:
        """Whether these arguments run in one process."""
        return False


class Training(Program[Own]):
    """A chapter that trains the tiny transformer."""

    trains = True
    defaults: ClassVar[Mapping[str, Any]] = {}  # of shared options, where the chapter has others

    def parser(self) -> Parser:
        made = Parser(self.name, self.doc or "")
        fill_shared(made)
        fill(made, self.options)
        made.set_defaults(**self.defaults)
        return made

    def read(self, arguments: Sequence[str], made: Parser | None = None) -> Line[Own]:
        """Parse a command line. made: its parser, if it takes more."""
        return line_of(parse(made or self.parser(), arguments), self.options)


class Chapter(Training[Own]):
    """A chapter that trains in the common loop: how a command line becomes an engine."""

    pooled = True
    states: ClassVar[int] = 16  # the least bytes that memory must hold per parameter, with gradient and optimizer state

    # ---- what a chapter says ----------------------------------------------------------------------------------------

    def make(self, job: Job[Own], comm: Any) -> Driver:
        """The engine, or what drives one (a pipeline)."""
        raise NotImplementedError

    def layout(self, line: Line[Own], ranks: int) -> Layout:
        """How the options lay out the ranks. Raises UsageError if they cannot."""
        return Layout(dp=ranks)

    def complete(self, line: Line[Own], layout: Layout) -> Line[Own]:
        """The options, with what was left open."""
        return line

    def checked(self, job: Job[Own]) -> Job[Own]:
        """The job that these options ask for. Raises UsageError for what cannot work, in a job that else would."""
        return job

    def reserve(self, job: Job[Own], comm: Any) -> Any:
        """What this rank reserves before any begins."""

    def serial(self, job: Job[Own]) -> Serial | None:
        """How one process does the same; None: it is one."""
        return PLAIN

    def closing(self, run: "Run") -> None:
        """Printed below the claims: what else is to be said of this run."""
        self.promises.closing(run)

    def title(self, job: Job[Own]) -> str:
        """Above a picture of what a rank holds."""
        return self.name

    def count(self, job: Job[Own], engine: Engine) -> Counted:
        """Other figures to count on each rank, after training."""
        return {}

    # ---- what is done with it ---------------------------------------------------------------------------------------

    @cached_property
    def promises(self) -> "Promises":
        """What its papers promise."""
        return importlib.import_module(f"minidist.claims.{self.name}").PROMISES

    @property
    def needs(self) -> "Estimate | None":
        """What each rank's device will need, by formula."""
        return self.promises.needs

    def job(
        self, arguments: Sequence[str], ranks: int, *, made: Parser | None = None, optimizer: Optimizer | None = None
    ) -> Job[Own]:
        """The job that a command line asks for. Raises UsageError for options that cannot work. optimizer: replaces
        the options' optimizer."""
        return self.job_of(self.read(arguments, made), ranks, optimizer)

    def job_of(self, line: Line[Own], ranks: int, optimizer: Optimizer | None = None) -> Job[Own]:
        layout = self.layout(line, ranks)
        line = self.complete(line, layout)
        return self.checked(command.prepare(self.name, line, layout, optimizer, self.states))

    def prepared(self, arguments: Sequence[str], comm: Any) -> Any:
        job = self.job(arguments, comm.size)
        job.reserved = self.reserve(job, comm)
        return job

    def begin(self, comm: Any, prepared: Any) -> int:
        if isinstance(prepared, Job) and prepared.training.types:
            from minidist.ty.report import report  # a run that trains loads none of it

            return report(self.make(prepared, comm), prepared, comm)
        return self.work(comm, prepared)

    def work(self, comm: Any, prepared: Any) -> int:
        """Most chapters train."""
        return self.train(comm, prepared)

    def driver(self, comm: Any, job: Job[Own]) -> Driver:
        """Make the driver; first print how much device memory it will need, and prove its numbers."""
        if comm.rank == 0 and job.files.device_memory is not None and not job.files.quiet:
            from minidist.programs.report import say_needs

            say_needs(job, self.needs)
        if (serial := self.serial(job)) and job.training.prove is not False:
            from minidist.programs.proof import prove

            job.proof = prove(comm, job, self.make, serial)
        return self.make(job, comm)

    def train(self, comm: Any, job: Job[Own], driver: Driver | None = None) -> int:
        """Train and report; returns the exit status."""
        made = driver or self.driver(comm, job)
        return train_and_report(self, job, made, comm, partial(self.count, job, made.engine))


def find(name: str) -> Any:
    """A chapter, by its name."""
    return importlib.import_module(f"minidist.programs.{name}").CHAPTER


def find_all() -> dict[str, Any]:
    """All chapters, by name."""
    return {entry.name: find(entry.name) for entry in contents.CHAPTERS}


def start(chapter: Program[Any]) -> NoReturn:
    """Run a chapter on the ranks that mpirun has started, on --ranks of this process, or on one."""
    arguments = sys.argv[1:]
    if chapter.needs_no_ranks(arguments):
        sys.exit(in_one_process(lambda: run_alone(chapter, arguments)))
    run(
        prepare=lambda comm: chapter.prepared(arguments, comm),
        main=chapter.begin,
        module=f"minidist.{chapter.name}",
        **chapter.watched,
    )


def run_alone(chapter: Program[Any], arguments: Sequence[str]) -> int:
    """Run a chapter in this process; returns the exit status."""
    return chapter.begin(Alone(), chapter.prepared(arguments, Alone()))
