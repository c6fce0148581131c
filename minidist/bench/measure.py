"""Timing two things side by side, on machines whose speed drifts."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Comparison:
    """One line of the benchmark: what `name` takes, as a multiple of what `beside` takes."""

    name: str
    beside: str
    ratio: float | None  # the median over pairs; None if nothing was measured
    spread: tuple[float, float] | None  # the quartiles of the ratio over pairs
    target: float | None  # the ratio to reach; None: stated without a target
    ours: float | None = None  # the two figures themselves, in `unit`
    theirs: float | None = None
    unit: str = ""
    missing: str = ""  # why nothing was measured

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None if there is no target or no measurement."""
        return None if self.ratio is None or self.target is None else self.ratio <= self.target

    @property
    def figures(self) -> str:
        """Ours / theirs, to three digits."""
        if self.ours is None or self.theirs is None:
            return self.missing
        both = (f"{float(f'{figure:.3g}'):g}" for figure in (self.ours, self.theirs))
        return f"{' / '.join(both)} {self.unit}".rstrip()


UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6}


def compare(
    name: str, beside: str, ours: list[float], theirs: list[float], target: float | None, unit: str
) -> Comparison:
    """A row made from times in seconds, which were measured in turn: ours, theirs, ours, theirs, …"""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    quartiles = (ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4])
    mine, other = (UNITS[unit] * statistics.median(times) for times in (ours, theirs))
    return Comparison(name, beside, statistics.median(ratios), quartiles, target, mine, other, unit)


def missing_row(name: str, beside: str, target: float | None, missing: str) -> Comparison:
    """A row that could not be measured here, and why."""
    return Comparison(name, beside, None, None, target, missing=missing)


def alternate(
    first: Callable[[], object], second: Callable[[], object], pairs: int, warm_up: int = 3
) -> tuple[list[float], list[float]]:
    """Seconds of each call of two functions, called in turn, so that the machine's drift affects both equally."""
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(-warm_up, pairs):
        for function, taken in zip((first, second), times, strict=True):
            begin = time.perf_counter()
            function()
            if pair >= 0:
                taken.append(time.perf_counter() - begin)
    return times
