"""Which grid of ranks to take: the most usual of the possible ones that have the given axes."""

import math
from argparse import Namespace
from dataclasses import replace
from typing import NamedTuple

from minidist import UsageError
from minidist.cp.options import check_context
from minidist.ep.options import check_division, choose_ep, choose_hosts
from minidist.layout import Layout
from minidist.pp import fit as pipelines
from minidist.tp.options import check_tensor

MOST_RANKS = 10_000  # no message advises the user to start more


class Grid(NamedTuple):
    """The number of ranks along each axis."""

    dp: int  # data
    pp: int  # pipeline
    tp: int  # tensor
    cp: int  # context

    def __str__(self) -> str:
        return " ".join(f"--{axis} {n}" for axis, n in self._asdict().items() if axis != "cp" or n > 1)


def choose(options: Namespace, ranks: int) -> Layout:
    """The layout of the most usual of the possible grids that have the given axes."""
    given = {axis: getattr(options, axis) for axis in Grid._fields}

    def changed(grid: Grid) -> int:
        return sum(n not in (None, grid[i]) for i, n in enumerate(given.values()))

    def unusual(grid: Grid) -> tuple[int, ...]:
        """How unusual a grid is: usual are one context rank, two tensor ranks, data parallelism, two stages."""
        return grid.cp, abs(grid.tp - 2), grid.dp == 1, abs(grid.pp - 2), -grid.dp

    every = [
        Grid(ranks // tp // pp // cp, pp, tp, cp)
        for cp in pipelines.divisors(ranks)
        for tp in pipelines.divisors(ranks // cp)
        for pp in pipelines.divisors(ranks // cp // tp)
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
    """Why no grid of this number of ranks has these axes; and the number that would work, if only that is wrong."""
    axes = " x ".join(f"--{axis} {n}" for axis, n in given.items() if n and (axis, n) != ("cp", 1))
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


def fit(options: Namespace, grid: Grid) -> Layout:
    """The complete layout. Raises UsageError if the grid is impossible, alone or with the other options."""
    dp, pp, tp, cp = grid
    check_tensor(options, tp)
    check_context(options, cp, tp)
    check_division(options)
    if options.sequence_parallel and cp > 1 and options.context % (2 * cp * tp):
        raise UsageError(f"--sequence-parallel with --cp {cp}: use a --context that {2 * cp * tp} divides")
    check_hosts(options)
    shard = dp if options.host_limit else options.ranks_per_host or dp
    if dp % shard:
        works = max(n for n in range(1, shard) if dp % n == 0)
        raise UsageError(f"--dp {dp} is not divisible by --ranks-per-host {shard}: use --ranks-per-host {works}")
    ep = choose_ep(options, shard * cp) if options.experts else 1
    ep_hosts = choose_hosts(options, ep, cp) if options.host_limit else 1
    if pp == 1 and (options.schedule or options.chunks or options.contiguous or options.trace):
        raise UsageError("--schedule, --chunks, --contiguous and --trace are of a pipeline")
    if options.micro_batches and options.accumulate not in (1, options.micro_batches):
        raise UsageError("--accumulate and --micro-batches say the same: use one of them")
    asked = options.micro_batches or (options.accumulate if options.accumulate > 1 or pp == 1 else None)
    schedule = options.schedule or "1f1b"
    wanted = Namespace(**{**vars(options), "schedule": schedule, "micro_batches": asked, "replicas": ()})
    staged = pipelines.fit(wanted, pp, sharing=dp)
    return replace(staged, dp=dp, tp=tp, cp=cp, hosts=dp // shard, ep=ep, ep_hosts=ep_hosts)


def check_hosts(options: Namespace) -> None:
    """Raise UsageError unless hosts have a use: ZeRO-3 divides parameters on each, or tokens go to a few of them."""
    if options.host_limit and not options.experts:
        raise UsageError(f"--host-limit {options.host_limit} is of tokens on their way to experts: use --experts 8")
    if options.host_limit and options.zero == 3:
        raise UsageError("--zero 3 divides experts within a host, so --host-limit has no choice: use --zero 2")
    if options.ranks_per_host and options.zero < 3 and not options.host_limit:
        raise UsageError(
            "--ranks-per-host says among how many ranks ZeRO-3 divides parameters: use it with --zero 3, or with"
            " --experts and --host-limit"
        )
