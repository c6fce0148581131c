"""ZeRO-R as a program: its options, what the paper says of its runs (`minidist/claims/zero_r.py`), and in place of
training the search for the largest model (`minidist/zr/configurations.py`)."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minidist import UsageError, command, train, zero_r
from minidist.claims.zero_r import claims, print_closing
from minidist.cli.options import Parser, at_least
from minidist.data_parallel import DataParallel
from minidist.formulas.residual import needs
from minidist.layout import Layout
from minidist.memory.pool import OutOfMemory
from minidist.mpi.comm import Comm
from minidist.programs.chapter import Chapter
from minidist.tp.options import check_tensor
from minidist.zr import arenas, configurations

PLACES = ("device", "partitioned", "host")


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--tp", type=at_least(1), metavar="N", help="ranks that share each layer; default: 2 if possible")
    add("--zero", type=int, choices=(0, 1, 2, 3), metavar="N", default=2, help="ZeRO's stage on the data axis, or 0")
    add("--sequence-parallel", action="store_true", help="cut norms, dropout and residuals by positions")
    add(
        "--activations",
        choices=PLACES,
        default="partitioned",
        metavar="WHERE",
        help=f"checkpoints: {', '.join(PLACES)}",
    )
    add("--scattered", action="store_true", help="each checkpoint for itself, not all in one room")
    add("--bucket-size", type=at_least(1), metavar="N", default=10_000, help="elements of the buffer for gradients")
    parser.output("--arena-plot", help="give arrays addresses, and draw where they are in a step")
    parser.output("--configurations", nargs="?", const=False, help="how many layers train in C1 to C5; draw it")
    parser.set_defaults(recompute="full")


def prepare(made: Parser, arguments: Sequence[str], ranks: int, **how: Any) -> command.Job:
    """Parse and check. Raises UsageError for options that cannot work."""
    options = made.parse_args(arguments)
    t = options.tp or (1 if ranks % 2 else 2)
    if ranks % t:
        works = max(n for n in range(1, min(t, ranks) + 1) if ranks % n == 0)
        raise UsageError(f"--tp {t} does not divide {ranks} ranks: use --tp {works}")
    check_tensor(options, t)
    if options.recompute != "full":
        raise UsageError(
            f"--recompute {options.recompute}: zero_r is about what full recomputation keeps: leave it out"
        )
    if options.activations == "partitioned" and options.sequence_parallel:
        raise UsageError("--sequence-parallel has cut checkpoints already: use --activations device, or host")
    configurations.check(options, ranks // t)
    if options.configurations is not None and options.device_memory is None:
        arguments = [*arguments, "--device-memory", configurations.USUAL_MEMORY]
    job = command.prepare(made, arguments, ranks, Layout(dp=ranks // t, tp=t), **how)
    return job


def make(job: command.Job, comm: Comm) -> DataParallel:
    o = job.options
    how = o.zero, o.activations, o.scattered, o.sequence_parallel
    return zero_r.zero_r(job.units, job.settings, comm, job.layout, *how)


def trains(comm: Comm, job: command.Job, layers: int) -> bool:
    """Whether a model with this number of layers can take a step within --device-memory, on every rank."""
    options = Namespace(**{**vars(job.options), "layers": layers})
    units = command.declare(options, len(job.corpus.vocabulary))
    try:
        train.train_step(make(replace(job, units=units), comm), job.corpus, options, step=0)
        fits = True
    except OutOfMemory:  # on every rank at the same array: all hold arrays of the same sizes
        fits = False
    return all(comm.all_gather_object(fits))


def perform(chapter: Chapter, comm: Comm, job: command.Job) -> int:
    """Search for the largest model, or train; with --arena-plot, draw the memory's addresses."""
    if job.options.configurations is not None:
        return configurations.search(comm, job, trains)
    engine = chapter.driver(comm, job).engine
    with arenas.drawn(engine.device, comm, job.options):
        return chapter.train(comm, job, engine)


CHAPTER = Chapter(
    name="zero_r",
    doc=zero_r.__doc__,
    make=make,
    add_options=add_options,
    prepare=prepare,
    claims=claims,
    closing=print_closing,
    needs=needs,
    perform=perform,
    cases={name: f"--activations {name}" for name in ("partitioned", "host")},
)
