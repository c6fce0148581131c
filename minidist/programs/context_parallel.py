"""Context parallelism as a program: its options, and what the papers say of its runs (`minidist/cp/claims.py`)."""

import itertools
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from minidist import UsageError, command, context_parallel, train
from minidist.claims.run import Asked
from minidist.cli.options import Parser, at_least
from minidist.cli.paths import write_json, write_output
from minidist.context_parallel import ContextAttention
from minidist.cp.claims import POSITIONS, SCHEMES, attention_bytes, check_context, claims, print_closing
from minidist.cp.compare import SchemeMeasure, draw, in_context, print_rows
from minidist.cp.watch import AttentionClock, Unwatched
from minidist.data_parallel import DataParallel
from minidist.engine import Engine
from minidist.grid.shares import needs
from minidist.layout import Layout
from minidist.memory import plot
from minidist.mpi.comm import Comm
from minidist.nn.layers import Block
from minidist.programs.chapter import Chapter


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--cp", type=at_least(1), metavar="N", help="ranks that divide each sequence; default: all")
    add_context_options(parser)
    add("--zero", type=int, choices=(0, 1, 2, 3), metavar="N", default=0, help="ZeRO's stage over all ranks, or 0")
    parser.output("--compare", nargs="?", const=False, help="all schemes, in place of training; FILE: draw the ring")


def add_context_options(parser: Parser, listed: bool = True) -> None:
    """Add --scheme and --positions to this chapter's options, or to the grid's. listed: whether --help shows them."""
    for option, choices in (("--scheme", SCHEMES), ("--positions", POSITIONS)):
        said = ", ".join(choices) if listed else SUPPRESS
        parser.add_argument(option, choices=choices, metavar="NAME", default=choices[0], help=said)


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Raises UsageError for options that cannot work."""
    options = made.parse_args(arguments)
    n = options.cp or ranks
    if ranks % n:
        works = max(m for m in range(1, min(n, ranks) + 1) if ranks % m == 0)
        raise UsageError(f"--cp {n} does not divide {ranks} ranks: use --cp {works}")
    check_context(options, n)
    if options.compare:
        plot.check("--compare", options.compare)
    return command.prepare(made, arguments, ranks, Layout(dp=ranks // n, cp=n), **how)


def watch_forward(job: command.Job, engine: Engine) -> AttentionClock:
    """Run one more forward while a clock watches this rank; returns its `Watch`."""
    [group] = {
        unit.attention.group
        for unit in engine.units
        if isinstance(unit, Block) and isinstance(unit.attention, ContextAttention)
    }
    o = job.options
    group.watch = watch = AttentionClock(group.comm)
    engine.evaluate(*job.corpus.batch(o.batch // o.accumulate, o.context, key=(o.seed, o.steps)))
    group.watch = Unwatched()
    return watch


def count(job: command.Job, engine: Engine) -> dict[str, Any]:
    """This rank's pairs of query and key by step, and the time at which it has computed them."""
    watch = watch_forward(job, engine)
    return {"pairs": watch.pairs[:-1], "time": watch.clock.now}


def compare(comm: Comm, job: command.Job) -> int:
    """Run a step with each possible scheme and layout of positions; print a table, and draw a picture if asked to.
    Returns 1 if a scheme has sent other bytes than its formula says."""
    rows = []
    for scheme, positions in itertools.product(SCHEMES, POSITIONS):
        with suppress(UsageError):
            rows.append(measure(comm, job, scheme, positions))
    found = [row for row in rows if row]
    if comm.rank == 0:
        if job.options.json != "-":
            print_rows(found, job.options.layers)
        if job.options.json:
            write_json(job.options.json, {"chapter": "context_parallel", "rows": [row.as_json() for row in found]})
        if job.options.compare:
            write_output(job.options.compare, draw(found, plot.format_of(job.options.compare)))
    return int(comm.broadcast_object(0 if all(row.holds for row in found) else 1))


def measure(comm: Comm, job: command.Job, scheme: str, positions: str) -> SchemeMeasure | None:
    """Run one step; returns a row on rank 0. Raises UsageError if the scheme is not possible."""
    o = Namespace(**{**vars(job.options), "scheme": scheme, "positions": positions})
    check_context(o, job.layout.cp)
    made = replace(job, options=o, units=command.declare(o, len(job.corpus.vocabulary)))
    engine = make(made, comm)
    comm.ledger.reset()
    train.train_step(engine, job.corpus, o, step=0)
    sent, held = comm.ledger.by_phase(), engine.peak_bytes()["messages"]
    mine = (in_context(sent, "forward"), in_context(sent, "backward"), engine.layer_activations, held)
    watch = watch_forward(made, engine)
    everyone = comm.gather_object((*mine, sum(watch.pairs), watch.clock.now, watch.spans))
    if everyone is None:
        return None
    forward, backward, kept, blocks, pairs, ended, spans = map(list, zip(*everyone, strict=True))
    promised = attention_bytes(Asked(job.chapter, o, job.layout, len(job.corpus.vocabulary)))
    return SchemeMeasure(scheme, positions, forward, backward, promised, pairs, ended, kept, blocks, spans)


def make(job: command.Job, comm: Comm) -> DataParallel:
    o = job.options
    return context_parallel.context_parallel(job.units, job.settings, comm, job.layout, o.scheme, o.positions, o.zero)


def perform(chapter: Chapter, comm: Comm, job: command.Job) -> int:
    if job.options.compare is not None:
        return compare(comm, job)
    return chapter.train(comm, job, count=count)


CHAPTER = Chapter(
    name="context_parallel",
    doc=context_parallel.__doc__,
    make=make,
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    closing=print_closing,
    needs=needs,
    perform=perform,
    cases={
        "": "",
        "all-gather": "--scheme all-gather --positions contiguous",
        "ulysses": "--scheme ulysses",
        "dp x cp": "--cp {axis} --zero 3 --positions striped",
    },
)
