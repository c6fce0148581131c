"""Pipelines as a program: its options, what the papers say of its runs (`minidist/claims/pipeline.py`), and what it
does in place of training: a schedule drawn, a published table."""

import argparse
import math
from argparse import SUPPRESS
from collections.abc import Sequence

from minidist import UsageError, command, pipeline
from minidist.claims import pipeline as promised
from minidist.claims.claim import Claim
from minidist.claims.run import Run
from minidist.cli.options import Parser, at_least, within
from minidist.cli.paths import check_writable
from minidist.command import Job, Options
from minidist.formulas.needs import needs
from minidist.layout import Layout
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.papers import pipelines
from minidist.pipeline import Pipeline
from minidist.pp import balance, zero_bubble
from minidist.pp.best import choose
from minidist.pp.draw import draw
from minidist.pp.fit import BANDWIDTH, CONTIGUOUS, cut, few_micro_batches, fit
from minidist.pp.schedules import SCHEDULES
from minidist.programs.chapter import Chapter
from minidist.programs.clocks import show_clocks
from minidist.programs.serial import Delayed, Serial


def stage_workers(text: str) -> tuple[int, ...] | str:
    """An argument type: 2,1,1, or auto."""
    if text == "auto":
        return text
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"every stage needs a rank, not {text}")
    return counts


def costs(text: str) -> tuple[float, ...]:
    """An argument type: times of F, B and W; of a message; and of a forward and a backward that overlap."""
    try:
        times = tuple(float(part) for part in text.split(","))
    except ValueError:
        times = ()
    if not 3 <= len(times) <= 5 or not all(0 <= time < math.inf for time in times) or not all(times[:3]):
        raise argparse.ArgumentTypeError(
            f"times of F, B and W are three numbers above 0, such as 1,1.2,0.8, not {text}"
        )
    return times


# These schedules run on any number of ranks; the grid has cases for the others.
ON_ANY = [name for name, schedule in SCHEDULES.items() if schedule.stages_in == 1]
# Without a flush each stage updates on its own. So these defaults avoid all on which stages would have to agree: a norm
# of all gradients, a common loss scale, a matrix that two stages share.
ON_ITS_OWN = ("--clip", "0", "--precision", "fp32", "--untied")


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--schedule", choices=tuple(SCHEDULES), metavar="NAME", default="1f1b", help="one of those of --draw all")
    add("-m", "--micro-batches", type=at_least(1), metavar="M", help="to an update; default: about 8, or PipeDream 1")
    add("-v", "--chunks", type=at_least(1), metavar="V", help="of each stage, if it has several; default: 2")
    add("--contiguous", type=at_least(1), metavar="N", help=CONTIGUOUS)
    add("--replicas", type=stage_workers, default=(), metavar="R,R,...", help="pipedream: ranks of each stage; or auto")
    parser.output("--trace", help="write the timeline for https://ui.perfetto.dev")
    add(
        "--draw",
        choices=("all", *SCHEDULES),
        metavar="NAME",
        help="draw a schedule, or all; --costs F,B,W[,message[,F&B]]",
    )
    add("--best", action="store_true", help="draw the fastest; --held X of 1F1B's activations")
    add("--held", type=within(0, 1000), metavar="X", help=SUPPRESS)
    add("--costs", type=costs, metavar="TIMES", help=SUPPRESS)
    add("-p", "--pp", type=at_least(1), metavar="P", help="stages: to draw, 4; to train, as many as ranks")
    add("--zero-bubble-table", action="store_true", help="Zero Bubble's table 5 from 8, 16 or 32 ranks' clocks")
    parser.renamed("--stages", "--pp")
    without = ", ".join(name for name, schedule in SCHEDULES.items() if not schedule.flushes)
    parser.epilog = f"""Without a flush ({without}) weights are older: not serial losses; defaults are
        {" ".join(ON_ITS_OWN)}."""


def prepare(made: Parser, arguments: Sequence[str], ranks: int) -> Job | argparse.Namespace:
    """Parse and check; --draw, --best and --zero-bubble-table return the options alone. Raises UsageError for options
    that cannot work."""
    options = made.parse_args(arguments)
    instead = [name for name in ("draw", "best", "zero_bubble_table") if vars(options)[name]]  # of training
    if len(instead) > 1:
        one, other = (f"--{name.replace('_', '-')}" for name in instead[:2])
        raise UsageError(f"{one} and {other}: use one of them")
    if options.held is not None and not options.best:
        raise UsageError("--held is of --best: use both, or leave it out")
    if options.draw or options.best:
        return options
    if options.costs:
        raise UsageError("--costs is of --draw and --best: in training, F, B and W take 1 each")
    if options.zero_bubble_table:
        check_writable("--json", options.json if options.json != "-" else None)
        if ranks not in zero_bubble.RANKS:
            raise UsageError(f"the paper's table has no pipeline of {ranks}: use mpirun -n 8, -n 16 or -n 32")
        return options
    if not SCHEDULES[options.schedule].flushes:
        arguments = [*ON_ITS_OWN, *arguments]
        options = made.parse_args(arguments)
        if options.clip:
            raise UsageError(f"{options.schedule} updates each stage on its own, without a norm of all: use --clip 0")
        if options.precision == "mixed":
            raise UsageError(f"{options.schedule} updates each stage on its own: use --precision fp32")
    if options.accumulate > 1:
        raise UsageError(f"a pipeline accumulates over its micro-batches: use --micro-batches {options.accumulate}")
    if options.replicas == "auto":
        units = command.prepare(made, arguments, ranks, Layout(pp=ranks)).units
        known = balance.profile(units, options.batch, options.context, itemsize=4)
        options.replicas = tuple(count for _, count in balance.partition(known, ranks, BANDWIDTH)[1])
    layout = fit(options, ranks)
    if options.pp not in (None, layout.pp):
        raise UsageError(f"--pp {options.pp} is not {layout.pp} stages: use mpirun -n {options.pp}, or leave out --pp")
    job = command.prepare(made, [*arguments, "--accumulate", str(layout.micro_batches)], ranks, layout)
    job.layout = cut(layout, job.options, job.units, job.settings.precision.bytes)
    return job


def make(job: Job, comm: Comm) -> Pipeline:
    at, options = job.layout, job.options
    stream = at.schedule, options.steps, at.replicas, options.save_every, at.contiguous
    return pipeline.pipeline_of(job.units, job.settings, comm, at.parts, *stream)


def drained(of: Options | Run, schedule: str) -> bool:
    """Whether a stream without a flush is interrupted to be saved. The papers' claims are about uninterrupted ones."""
    return bool(of.save_every and not SCHEDULES[schedule].flushes)


def print_drained(options: Options) -> None:
    """Print why there are no claims."""
    print(f"\nTo be saved, the pipeline was drained after every {options.save_every} steps.")
    print("The papers' claims are about a stream that is not interrupted: none was checked.")


def serial(job: Job) -> Serial:
    """Without a flush, each stage's gradients are those of older weights: the papers say of which."""
    few = few_micro_batches(job.layout)
    if SCHEDULES[job.layout.schedule].flushes:
        return Serial(micro_batches=few)

    def make(small: Job) -> Delayed:
        at, workers = small.layout, small.layout.replicas or (1,) * small.layout.pp
        stages = [{flat.name for i in part for flat in small.units[i].flats} for part in at.parts]

        def version(k: int, flat: Flat) -> int:
            stage = next(stage for stage, names in enumerate(stages, 1) if flat.name in names)
            return pipelines.version_with_replicas(at.schedule, workers, stage, k, at.micro_batches)

        return Delayed(small.units, small.settings, version)

    return Serial(make, steps=2 + -(-job.layout.pp // (few or 1)), plain=False, micro_batches=few)


def claims(run: Run) -> list[Claim]:
    return [] if drained(run, run.layout.schedule) else promised.claims(run)


def perform(chapter: Chapter, comm: Comm, job: Job | argparse.Namespace) -> int:
    """Draw, fill the table, or train and then show the timeline."""
    if not isinstance(job, Job):
        return draw(job) if job.draw else choose(job) if job.best else zero_bubble.main(comm, job.json)
    driver = chapter.driver(comm, job)
    assert isinstance(driver, Pipeline)
    status = chapter.train(comm, job, driver)
    if drained(job.options, job.layout.schedule) and comm.rank == 0 and job.options.json != "-":
        print_drained(job.options)
    show_clocks(comm, driver.watch.timeline, job)
    return status


CHAPTER = Chapter(
    name="pipeline",
    doc=pipeline.__doc__,
    make=make,
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    closing=promised.print_letters,
    serial=serial,
    needs=needs,
    perform=perform,
    needs_no_ranks=lambda arguments: any(argument.startswith(("--draw", "--best")) for argument in arguments),
    cases={name: f"--layers {{batch}} --micro-batches {{batch}} --schedule {name}" for name in ON_ANY},
)
