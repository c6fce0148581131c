"""The pipeline chapter's command line: what it takes, what cannot work, and a layout that would."""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

from minidist import UsageError, command
from minidist.claims.files import check_writable
from minidist.cli.options import Parser, at_least, in_one_process, rank_of_launch
from minidist.mpi.comm import Comm
from minidist.mpi.run import run
from minidist.nn.layers import Unit
from minidist.pp import balance, zero_bubble
from minidist.pp.schedules import SCHEDULES, places
from minidist.pp.timeline import print_timelines, summary
from minidist.pp.watch import UNIT_COSTS, simulate

MOST_DRAWN = 1000  # forwards of a schedule, of which a terminal shows some 30 in a line
BANDWIDTH = 0.05  # bytes in the time of a multiplication, as of 10 Gb/s beside 25 Tflop/s


def stage_workers(text: str) -> tuple[int, ...] | str:
    """An argument type: 2,1,1, or auto."""
    if text == "auto":
        return text
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"every stage needs a rank, not {text}")
    return counts


# Without a flush each stage updates on its own, so by default nothing is asked for on which all would have to agree: no
# norm of all gradients, no common loss scale, no matrix that two stages share.
ON_ITS_OWN = ("--clip", "0", "--precision", "fp32", "--untied")


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    names = ", ".join(SCHEDULES)
    add("--schedule", choices=tuple(SCHEDULES), metavar="NAME", default="1f1b", help=f"one of {names}")
    add("-m", "--micro-batches", type=at_least(1), metavar="M", help="to an update; default: about 8, or PipeDream 1")
    add("-v", "--chunks", type=at_least(1), metavar="V", help="interleaved: of each stage; default: 2")
    add("--replicas", type=stage_workers, default=(), metavar="R,R,...", help="pipedream: ranks of each stage; or auto")
    parser.output("--trace", help="write the timeline for https://ui.perfetto.dev")
    add("--draw", choices=("all", *SCHEDULES), metavar="NAME", help="draw a schedule, or all, and do nothing else")
    add("-p", "--pp", type=at_least(1), metavar="P", help="stages: to draw, 4; to train, as many as ranks")
    add("--zero-bubble-table", action="store_true", help="Zero Bubble's table 5 from 8, 16 or 32 ranks' clocks")
    parser.renamed("--stages", "--pp")
    without = ", ".join(name for name, schedule in SCHEDULES.items() if not schedule.flushes)
    parser.epilog = f"""Without a flush ({without}) each stage updates on its own, from older weights: losses are not
        those of serial training, and defaults are {" ".join(ON_ITS_OWN)}."""


def start(doc: str | None, main: Callable[[Comm, command.Job], int]) -> NoReturn:
    """Do what the command line asks: draw, print the table, or run `main` on a checked job."""
    made = command.parser(doc or "", "pipeline")  # python -OO drops docstrings
    add_options(made)
    if any(argument.startswith("--draw") for argument in sys.argv):
        sys.exit(in_one_process(lambda: draw(made, sys.argv[1:])))

    def do(comm: Comm, job: command.Job | argparse.Namespace) -> int:
        return main(comm, job) if isinstance(job, command.Job) else zero_bubble.main(comm, job.json)

    run(prepare=lambda comm: prepare(made, sys.argv[1:], comm.size), main=do)


def prepare(made: Parser, arguments: Sequence[str], ranks: int) -> "command.Job | argparse.Namespace":
    """Parse and check; for --zero-bubble-table the options alone. Raises UsageError for whatever cannot work."""
    options = made.parse_args(arguments)
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
        units = command.prepare(made, arguments, ranks, sharing=1).units
        known = balance.profile(units, options.batch, options.context, itemsize=4)
        options.replicas = tuple(count for _, count in balance.partition(known, ranks, BANDWIDTH)[1])
    layout = fit(options, ranks)
    if options.pp not in (None, layout["stages"]):
        raise UsageError(
            f"--pp {options.pp} is not {layout['stages']} stages: use mpirun -n {options.pp}, or leave --pp away"
        )
    job = command.prepare(made, [*arguments, "--accumulate", str(layout["micro_batches"])], ranks, sharing=1)
    vars(job.options).update(layout)
    job.options.parts = cut(job.options, job.units, job.settings.precision.bytes)
    return job


def fit(options: argparse.Namespace, ranks: int, sharing: int = 1) -> dict[str, Any]:
    """Stages, chunks and micro-batches, whether they were given or not. Raises UsageError if they do not fit.

    sharing: how many such pipelines share out each micro-batch.
    """
    name, replicas = options.schedule, options.replicas
    in_turns = name in ("pipedream", "vertical-sync")
    if replicas and not in_turns:
        raise UsageError(f"{name} has one rank for each stage: leave --replicas away, or use --schedule pipedream")
    if replicas and sum(replicas) != ranks:
        counts = ",".join(map(str, replicas))
        raise UsageError(f"--replicas {counts} are {sum(replicas)} ranks, not {ranks}: use mpirun -n {sum(replicas)}")
    stages = len(replicas) or ranks
    chunks = options.chunks or (2 if name == "interleaved" else 1)
    if chunks > 1 and name != "interleaved":
        raise UsageError(f"{name} has one chunk to a stage: leave --chunks away, or use --schedule interleaved")

    needed = stages * chunks
    if needed > options.layers + 2:
        whole = f"{stages} stages" + (f" of {chunks} chunks" if chunks > 1 else "")
        units = f"{options.layers + 2} units (embedding, {options.layers} block{'s' * (options.layers > 1)}, head)"
        raise UsageError(f"{units} are too few for {whole}: use --layers {needed - 2}")

    # m must be a multiple of something and at least something, and the batch a multiple of m.
    multiple = stages if name == "interleaved" else math.lcm(*replicas) if replicas else 1
    least = stages if name == "2bw" else 1
    batch, usual = options.batch, multiple if in_turns else 8
    fitting = [m for m in divisors(batch) if m % multiple == 0 and least <= m <= batch // sharing]
    default = next((m for m in fitting if m >= usual), fitting[-1] if fitting else max(usual, least))
    m = options.micro_batches or default
    if m not in fitting:
        good = -(-max(m, least) // multiple) * multiple
        enough = good * max(-(-batch // good), sharing)
        if m % multiple or m < least:
            needs = f"a multiple of {multiple}" if m % multiple else f"at least {least}"
            reason = f"{name} on {ranks} ranks needs {needs} for --micro-batches, not {m}"
        elif batch % m:
            reason = f"--batch {batch} is not divisible by --micro-batches {m}"
        else:
            reason = f"--batch {batch} in {m} micro-batch{'es' * (m > 1)} is too small for {sharing} ranks"
        remedy = {"--micro-batches": good} if good != m else {}
        remedy |= {"--batch": enough} if enough != batch else {}
        raise UsageError(f"{reason}: use {' '.join(f'{option} {n}' for option, n in remedy.items())}")
    return {"stages": stages, "chunks": chunks, "micro_batches": m, "replicas": replicas}


@cache
def divisors(n: int) -> list[int]:
    """In ascending order."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def cut(options: argparse.Namespace, units: list[Unit], itemsize: int) -> list[range]:
    """Which units each chunk has, so that chunks are balanced."""
    known = balance.profile(units, options.batch // options.micro_batches, options.context, itemsize)
    replicas = options.replicas or (1,) * (options.stages * options.chunks)
    _, stages = balance.partition(known, sum(replicas), BANDWIDTH, replicas)
    return [which for which, _ in stages]


def draw(made: Parser, arguments: list[str]) -> None:
    """--draw: print the timelines of schedules, from one process and without MPI."""
    options = made.parse_args(arguments)
    if rank_of_launch() > 0:
        return  # under mpirun one drawing is enough
    p, m = options.pp or 4, options.micro_batches or 8
    if p > 100 or p * m * (options.chunks or 1) > MOST_DRAWN:
        raise UsageError(f"{p} stages and {m} micro-batches are more than can be drawn: use fewer")
    for name in SCHEDULES if options.draw == "all" else (options.draw,):
        schedule, v = SCHEDULES[name], (options.chunks or 2) if name == "interleaved" else 1
        needs = ""
        if name == "interleaved" and m % p:
            needs = f"needs a multiple of -p {p} for -m, not {m}: use -m {-(-m // p) * p}"
        elif name == "2bw" and m < p:
            needs = f"needs at least as many micro-batches as stages, not {m}: use -m {p}"
        if needs and options.draw != "all":
            raise UsageError(f"{name} {needs}")
        if needs:  # the others can be compared nevertheless
            print(f"{name} is left out, it {needs}", end="\n\n")
            continue
        # Without a flush, more than one screen of it: PipeDream updates after each micro-batch, 2BW after m.
        to_update, updates = (m, 1) if schedule.flushes else (m, 9) if name == "2bw" else (1, 9 * m)
        streams = [(at, schedule.instructions(at)) for at in places(p, to_update, v, updates)]
        timelines = simulate(streams, UNIT_COSTS)
        heading = f"{name}  {schedule.paper}" + "; small: later chunks" * (v > 1)
        print_timelines(heading, timelines, goes_on=not schedule.flushes)
        every = "every micro-batch" if to_update == 1 else f"every {m} micro-batches"
        print(summary(timelines, v) if schedule.flushes else f"no flush; an update after {every}", end="\n\n")
    print("F: forward, B: backward of the input, W: of the weights, each with the last")
    print("digit of its micro-batch; in flight: the most that each stage holds; …: goes on.")
    print("Without a flush, below: each one's version of the weights; |: a new one is made.")
