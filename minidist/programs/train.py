"""Serial training as a program: one process holds and computes everything."""

from collections.abc import Sequence
from typing import Any

from minidist import UsageError, command, train
from minidist.cli.options import Parser
from minidist.engine import Engine
from minidist.ep.options import add_mixture, check_mixture
from minidist.formulas.needs import needs
from minidist.mpi import environment
from minidist.programs.chapter import Chapter


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Raises UsageError for options that cannot work, and on more than one rank."""
    options = made.parse_args(arguments)
    if environment.ranks() > 1 or (options.ranks or 1) > 1:
        raise UsageError("this is serial training: run it on one rank, or take minidist.data_parallel")
    check_mixture(options)
    return command.prepare(made, arguments, ranks, **how)


CHAPTER = Chapter(
    name="train",
    doc=train.__doc__,
    make=lambda job, comm: Engine(job.units, job.settings),
    add_options=lambda parser: add_mixture(parser, experts=0),
    prepare=prepare,
    serial=lambda job: None,
    claims=lambda run: [],  # nothing is shared
    needs=needs,
    needs_no_ranks=lambda arguments: True,
    cases={},
)
