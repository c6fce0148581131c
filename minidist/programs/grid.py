"""Which grid of ranks to take: the most usual of the possible ones that have the given axes."""

import math
from collections.abc import Callable
from typing import NamedTuple

from minidist import UsageError
from minidist.layout import Layout
from minidist.pp.options import divisors

MOST_RANKS = 10_000  # no message advises the user to start more


class Grid(NamedTuple):
    """The number of ranks along each axis."""

    dp: int  # data
    pp: int  # pipeline
    tp: int  # tensor
    cp: int  # context

    def __str__(self) -> str:
        return " ".join(f"--{axis} {n}" for axis, n in self._asdict().items() if axis != "cp" or n > 1)


def choose(given: dict[str, int | None], ranks: int, fit: Callable[[Grid], Layout]) -> Layout:
    """The layout of the most usual of the possible grids that have the given axes. fit: the layout of a grid; raises
    UsageError if it is impossible, alone or with the other options."""

    def changed(grid: Grid) -> int:
        return sum(n not in (None, grid[i]) for i, n in enumerate(given.values()))

    def unusual(grid: Grid) -> tuple[int, ...]:
        """How unusual a grid is: usual are one context rank, two tensor ranks, data parallelism, two stages."""
        return grid.cp, abs(grid.tp - 2), grid.dp == 1, abs(grid.pp - 2), -grid.dp

    every = [
        Grid(ranks // tp // pp // cp, pp, tp, cp)
        for cp in divisors(ranks)
        for tp in divisors(ranks // cp)
        for pp in divisors(ranks // cp // tp)
    ]
    every.sort(key=lambda grid: (changed(grid), unusual(grid)))
    refusal = "" if changed(every[0]) == 0 else _no_grid(given, ranks, fit)
    for grid in every:
        try:
            layout = fit(grid)
        except UsageError as error:
            refusal = refusal or str(error)
        else:
            if changed(grid) == 0:
                return layout
            raise UsageError(f"{refusal}{', or' if ': ' in refusal else ': use'} {grid}")
    raise UsageError(refusal)


def _no_grid(given: dict[str, int | None], ranks: int, fit: Callable[[Grid], Layout]) -> str:
    """Why no grid of this number of ranks has these axes; and the number that would work, if only that is wrong."""
    axes = " x ".join(f"--{axis} {n}" for axis, n in given.items() if n and (axis, n) != ("cp", 1))
    product = math.prod(filter(None, given.values()))
    needed = product if None not in given.values() else product * -(-ranks // product)
    reason = f"{axes} does not make {ranks} ranks"
    if needed > MOST_RANKS:
        return reason
    try:
        choose(given, needed, fit)
    except UsageError:
        return reason
    return f"{reason}: use mpirun -n {needed}"
