"""Context parallelism as a program: its options, and what the papers say of its runs (`minidist/cp/claims.py`)."""

from collections.abc import Sequence
from typing import Any

from minidist import UsageError, command, context_parallel
from minidist.cli.options import Parser, at_least
from minidist.context_parallel import ContextAttention
from minidist.cp.claims import POSITIONS, SCHEMES, check_context, claims, print_closing
from minidist.cp.watch import Watch
from minidist.engine import Engine
from minidist.layout import Layout
from minidist.nn.layers import Block
from minidist.programs.chapter import Chapter


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--cp", type=at_least(1), metavar="N", help="ranks that divide each sequence; default: all")
    add_context_options(parser)
    add("--zero", type=int, choices=(0, 1, 2, 3), metavar="N", default=0, help="ZeRO's stage over all ranks, or 0")


def add_context_options(parser: Parser) -> None:
    """How positions are cut, and how queries meet keys: the same in a grid."""
    add = parser.add_argument
    add("--scheme", choices=SCHEMES, metavar="NAME", default="ring", help=", ".join(SCHEMES))
    add("--positions", choices=POSITIONS, metavar="NAME", default="zigzag", help=", ".join(POSITIONS))


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Raises UsageError for whatever cannot work."""
    options = made.parse_args(arguments)
    n = options.cp or ranks
    if ranks % n:
        works = max(m for m in range(1, min(n, ranks) + 1) if ranks % m == 0)
        raise UsageError(f"--cp {n} does not divide {ranks} ranks: use --cp {works}")
    check_context(options, n)
    return command.prepare(made, arguments, ranks, Layout(dp=ranks // n, cp=n), **how)


def count(job: command.Job, engine: Engine) -> dict[str, Any]:
    """One more forward, in which a clock watches: pairs of query and key by step, and when this rank has ended."""
    [group] = {
        unit.attention.group
        for unit in engine.units
        if isinstance(unit, Block) and isinstance(unit.attention, ContextAttention)
    }
    o = job.options
    group.watch = watch = Watch(group.comm)
    engine.evaluate(*job.corpus.batch(o.batch // o.accumulate, o.context, key=(o.seed, o.steps)))
    group.watch = None
    return {"pairs": watch.pairs[:-1], "time": watch.clock.now}


CHAPTER = Chapter(
    name="context_parallel",
    doc=context_parallel.__doc__,
    make=lambda job, comm: context_parallel.context_parallel(
        job.units, job.settings, comm, job.layout, job.options.scheme, job.options.positions, job.options.zero
    ),
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    closing=print_closing,
    perform=lambda chapter, comm, job: chapter.train(comm, job, count=count),
    cases={
        "": "",
        "all-gather": "--scheme all-gather --positions contiguous",
        "ulysses": "--scheme ulysses",
        "dp x cp": "--cp 2 --zero 3 --positions striped",
    },
)
