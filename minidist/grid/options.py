"""The command line of parallel3d: which axes there are to choose, which grids cannot work, and one that would."""

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from minidist import UsageError, command
from minidist.cli.options import Parser, at_least
from minidist.pipeline import SCHEDULES, pipeline_options
from minidist.tensor_parallel import tensor_claims

MOST_RANKS = 10_000  # beyond, nobody is advised to start so many
WITH_FLUSH = tuple(name for name, schedule in SCHEDULES.items() if schedule.flushes)


class Grid(NamedTuple):
    """How many ranks there are along each axis."""

    dp: int  # data
    pp: int  # pipeline
    tp: int  # tensor

    def __str__(self) -> str:
        return " ".join(f"--{axis} {n}" for axis, n in self._asdict().items())


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--dp", type=at_least(1), metavar="N", help="data-parallel ranks; default: what the others leave")
    add("--pp", type=at_least(1), metavar="N", help="stages; default: 2 if 2 or more ranks are left")
    add("--tp", type=at_least(1), metavar="N", help="ranks that share each layer; default: 2 if possible")
    add("--zero", type=int, choices=(0, 1, 2, 3), metavar="N", default=1, help="ZeRO's stage on the data axis, or 0")
    add("--shard", type=at_least(1), metavar="N", help="--zero 3: data-parallel ranks of a host; default: all")
    add("--schedule", choices=WITH_FLUSH, metavar="NAME", help=f"one of {', '.join(WITH_FLUSH)}; default: 1f1b")
    add("-m", "--micro-batches", type=at_least(1), metavar="M", help="in a step; default: about 8, or unpipelined 1")
    add("-v", "--chunks", type=at_least(1), metavar="V", help="interleaved: of each stage; default: 2")
    parser.output("--trace", help="write the timelines for https://ui.perfetto.dev")
    add("--sequence-parallel", action="store_true", help="cut norms, dropout and residuals by positions")
    parser.renamed("--pipeline", "--pp")
    parser.renamed("--tensor", "--tp")
    parser.set_defaults(gather_logits=False)  # what the claims of tensor parallelism ask


def prepare(made: Parser, arguments: Sequence[str], ranks: int) -> command.Job:
    """Parse, choose what was left open, and check. Raises UsageError for whatever cannot work."""
    options = made.parse_args(arguments)
    if options.data and options.data.isdecimal() and not Path(options.data).exists():
        raise UsageError(f"--data is the text: {options.data} data-parallel ranks are --dp {options.data} now")
    layout = choose(options, ranks)
    arguments = [*arguments, "--accumulate", str(layout["micro_batches"])]
    job = command.prepare(made, arguments, ranks, sharing=layout["dp"])
    vars(job.options).update(layout)
    job.options.parts = pipeline_options.cut(job.options, job.units, job.settings.precision.bytes)
    return job


def choose(options: Namespace, ranks: int) -> dict[str, Any]:
    """The layout: of the grids that can be, the most usual one that has the axes that were given."""
    given = {"dp": options.dp, "pp": options.pp, "tp": options.tp}

    def changed(grid: Grid) -> int:
        return sum(n not in (None, grid[i]) for i, n in enumerate(given.values()))

    def unusual(grid: Grid) -> tuple[int, ...]:
        """Tensor parallelism by 2, then data parallelism at all, then two stages, as far as there are ranks."""
        return abs(grid.tp - 2), grid.dp == 1, abs(grid.pp - 2), -grid.dp

    every = [
        Grid(ranks // tp // pp, pp, tp)
        for tp in pipeline_options.divisors(ranks)
        for pp in pipeline_options.divisors(ranks // tp)
    ]
    every.sort(key=lambda grid: (changed(grid), unusual(grid)))
    refusal = "" if changed(every[0]) == 0 else _no_grid(options, given, ranks)
    for grid in every:
        try:
            layout = fit(options, grid)
        except UsageError as error:
            refusal = refusal or str(error)
        else:
            if changed(grid) == 0:
                return layout
            raise UsageError(f"{refusal}{', or' if ': ' in refusal else ': use'} {grid}")
    raise UsageError(refusal)


def _no_grid(options: Namespace, given: dict[str, int | None], ranks: int) -> str:
    """Why no grid of so many ranks has these axes; and how many ranks there should be, if that is all that is wrong."""
    axes = " x ".join(f"--{axis} {n}" for axis, n in given.items() if n)
    product = math.prod(filter(None, given.values()))
    needed = product if None not in given.values() else product * -(-ranks // product)
    reason = f"{axes} does not make {ranks} ranks"
    if needed > MOST_RANKS:
        return reason
    try:
        choose(options, needed)
    except UsageError:
        return reason
    return f"{reason}: use mpirun -n {needed}"


def fit(options: Namespace, grid: Grid) -> dict[str, Any]:
    """All of a layout. Raises UsageError if the grid cannot be, or cannot be with the other options."""
    dp, pp, tp = grid
    tensor_claims.check_tensor(options, tp)
    if options.shard and options.zero < 3:
        raise UsageError("--shard says among whom ZeRO-3 divides parameters: use it with --zero 3")
    shard = options.shard or dp
    if dp % shard:
        works = max(n for n in range(1, shard) if dp % n == 0)
        raise UsageError(f"--dp {dp} is not divisible by --shard {shard}: use --shard {works}")
    if pp == 1 and (options.schedule or options.chunks or options.trace):
        raise UsageError("--schedule, --chunks and --trace are of a pipeline")
    if options.micro_batches and options.accumulate not in (1, options.micro_batches):
        raise UsageError("--accumulate and --micro-batches say the same: use one of them")
    asked = options.micro_batches or (options.accumulate if options.accumulate > 1 or pp == 1 else None)
    schedule = options.schedule or "1f1b"
    wanted = Namespace(**{**vars(options), "schedule": schedule, "micro_batches": asked, "replicas": ()})
    staged = pipeline_options.fit(wanted, pp, sharing=dp)
    return {**grid._asdict(), "shard": shard, "schedule": schedule, **staged}
