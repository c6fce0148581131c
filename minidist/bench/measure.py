"""Timing two things side by side, on machines whose speed drifts."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Row:
    """One line of the benchmark: how long `name` takes, as a multiple of what `beside` takes."""

    name: str
    beside: str
    ratio: float | None  # the median over pairs; None where `beside` is not installed
    spread: tuple[float, float] | None  # the quartiles of the ratio over pairs
    target: float | None  # the ratio to reach; None: stated without a target
    note: str = ""  # the two figures themselves: ours / theirs

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None where there is none, or no measurement."""
        return None if self.ratio is None or self.target is None else self.ratio <= self.target


def compare(name: str, beside: str, ours: list[float], theirs: list[float], target: float | None, unit: str) -> Row:
    """A row from times in seconds that were measured in turn: ours, theirs, ours, theirs, …"""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    quartiles = (ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4])
    factor = {"s": 1, "ms": 1e3}[unit]
    note = f"{factor * statistics.median(ours):.3g} / {factor * statistics.median(theirs):.3g} {unit}"
    return Row(name, beside, statistics.median(ratios), quartiles, target, note)


def alternate(
    first: Callable[[], object], second: Callable[[], object], pairs: int, warm_up: int = 3
) -> tuple[list[float], list[float]]:
    """Seconds that each call of two functions takes, called in turn, so that the machine's drift hits both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(-warm_up, pairs):
        for function, taken in zip((first, second), times, strict=True):
            begin = time.perf_counter()
            function()
            if pair >= 0:
                taken.append(time.perf_counter() - begin)
    return times
