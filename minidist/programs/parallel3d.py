"""The grid as a program: its options, and what the papers say of its runs (`minidist/claims/grid.py`)."""

from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path

from minidist import UsageError, command, parallel3d
from minidist.claims.grid import claims, print_closing
from minidist.cli.options import Parser, at_least
from minidist.command import Job
from minidist.ep.count import count as count_experts
from minidist.ep.options import add_division
from minidist.formulas.needs import needs
from minidist.grid.choose import choose
from minidist.mpi.comm import Comm
from minidist.pipeline import Pipeline
from minidist.pp.fit import cut, few_micro_batches
from minidist.pp.schedules import SCHEDULES
from minidist.programs.chapter import Chapter
from minidist.programs.clocks import show_clocks
from minidist.programs.context_parallel import add_context_options
from minidist.programs.serial import Serial
from minidist.tp.count import count_with_dropout

WITH_FLUSH = tuple(name for name, schedule in SCHEDULES.items() if schedule.flushes)


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--dp", type=at_least(1), metavar="N", help="data-parallel ranks; default: what the others leave")
    add("--pp", type=at_least(1), metavar="N", help="stages; default: 2 if 2 or more ranks are left")
    add("--tp", type=at_least(1), metavar="N", help="ranks that share each layer; default: 2 if possible")
    add("--cp", type=at_least(1), metavar="N", default=1, help="divide sequences; --scheme, --positions")
    add_context_options(parser, listed=False)
    add_division(parser)
    add("--zero", type=int, choices=(0, 1, 2, 3), metavar="N", default=1, help="ZeRO's stage on the data axis, or 0")
    add("--ranks-per-host", type=at_least(1), metavar="G", help="on a host, of dp: with --zero 3, or --host-limit H")
    add("--host-limit", type=at_least(1), metavar="H", help=SUPPRESS)
    parser.alias("--shard", "--ranks-per-host")
    add("--schedule", choices=WITH_FLUSH, metavar="NAME", help="with a flush: pipeline --draw all; default: 1f1b")
    add("-m", "--micro-batches", type=at_least(1), metavar="M", help="in a step; default: about 8, or unpipelined 1")
    add("-v", "--chunks", type=at_least(1), metavar="V", help="of a stage that has several; --contiguous N: llama3")
    add("--contiguous", type=at_least(1), metavar="N", help=SUPPRESS)
    parser.output("--trace", help="write the timelines for https://ui.perfetto.dev")
    add("--sequence-parallel", action="store_true", help="cut norms, dropout and residuals by positions")
    parser.renamed("--pipeline", "--pp")
    parser.renamed("--tensor", "--tp")


def prepare(made: Parser, arguments: Sequence[str], ranks: int) -> Job:
    """Parse, choose what was left open, and check. Raises UsageError for options that cannot work."""
    options = made.parse_args(arguments)
    if options.data and options.data.isdecimal() and not Path(options.data).exists():
        raise UsageError(f"--data is the text: {options.data} data-parallel ranks are --dp {options.data} now")
    layout = choose(options, ranks)
    arguments = [*arguments, "--accumulate", str(layout.micro_batches)]
    job = command.prepare(made, arguments, ranks, layout)
    job.layout = cut(layout, job.options, job.units, job.settings.precision.bytes)
    return job


def perform(chapter: Chapter, comm: Comm, job: Job) -> int:
    """Train; for a pipeline, show what the clocks say below the report."""
    driver = chapter.driver(comm, job)
    if not isinstance(driver, Pipeline):
        return chapter.train(comm, job, driver, count_experts if job.options.experts else count_with_dropout)
    status = chapter.train(comm, job, driver, count_experts if job.options.experts else None)
    show_clocks(comm, driver.watch.timeline, job)
    return status


CHAPTER = Chapter(
    name="parallel3d",
    doc=parallel3d.__doc__,
    make=lambda job, comm: parallel3d.grid(
        job.units,
        job.settings,
        comm,
        job.layout,
        job.options.zero,
        job.options.sequence_parallel,
        job.options.scheme,
        job.options.positions,
        host_limit=job.options.host_limit,
    ),
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    closing=print_closing,
    serial=lambda job: Serial(micro_batches=few_micro_batches(job.layout)),
    needs=needs,
    perform=perform,
    ranks=(8,),
    cases={
        **{f"ZeRO-{stage}": f"--zero {stage}" for stage in range(4)},
        "DualPipe": "--dp 2 --pp 4 --tp 1 --schedule dualpipe --micro-batches 8",
        "experts": "--dp 2 --pp 1 --cp 2 --tp 2 --experts 8 --capacity 1.25",
        "context": "--dp 2 --pp 2 --cp 2 --tp 1 --scheme ulysses --zero 2",
        "hosts": "--dp 4 --pp 2 --tp 1 --experts 8 --ranks-per-host 2 --host-limit 1",
        "Chimera": "--dp 1 --pp 4 --tp 2 --schedule chimera --micro-batches 4",
    },
)
