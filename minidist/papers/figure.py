"""A number that a paper prints: where it stands, how it comes out here, and how sure it is that it is printed so.

Each module of a paper declares its figures once, beside their formula, as `FIGURES`; chapters and lessons draw from
there. What nobody has read, but only remembers, is not entered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

Evidence = Literal["the paper", "a second source", "code"]


@dataclass(frozen=True)
class Figure:
    """One printed number. A computed one has the value that its formula gives; a measured one comes out of a run, on
    ranks or on the cluster of those who print it, and has none."""

    source: str  # the paper, and its table, figure or section
    cell: str  # which of its numbers
    printed: str  # as it stands there
    unit: str
    formula: str  # how it comes out
    value: float | None
    rounded: Callable[[float], str]  # as the source rounds what it prints
    evidence: Evidence = "the paper"  # where it was read
    bounds: tuple[float, float] | None = None  # of the value, where the formula starts from numbers printed rounded
    differs: str = ""  # why it does not come out as printed, where a paper disagrees with itself

    def shown(self, measured: float | None = None) -> str:
        """What the formula gives, or a run has given, as the source would print it. Raises ValueError if a measured
        figure is asked for without the run's."""
        value = self.value if measured is None else measured
        if value is None:
            raise ValueError(f"{self.source}, {self.cell}: no formula gives it, only a run on ranks")
        return self.rounded(value)

    def agrees(self, measured: float | None = None) -> bool:
        """Whether that is what is printed; or what is printed lies within the bounds."""
        if measured is None and self.bounds:
            least, most = map(self.rounded, self.bounds)
            return plain(least) <= plain(self.printed) <= plain(most)
        return self.shown(measured) == self.printed


def plain(printed: str) -> float:
    """A printed number as a number."""
    return float(printed.replace(",", ""))


def from_rounded(formula: Callable[[float], float], printed: str) -> tuple[float, tuple[float, float]]:
    """The value that a formula gives for a number that is printed rounded, and its bounds: for the least and the most
    that the number stands for, half of its last digit away."""
    number = Decimal(printed.replace(",", ""))
    half = Decimal(5).scaleb(int(number.as_tuple().exponent) - 1)
    ends = sorted(formula(float(end)) for end in (number - half, number + half))
    return formula(float(number)), (ends[0], ends[1])


def decimals(n: int) -> Callable[[float], str]:
    """To n decimals, halves up: 41.25 is 41.3, where Python's own rounding makes it 41.2."""
    step = Decimal(1).scaleb(-n)
    return lambda value: str(Decimal(str(float(value))).quantize(step, ROUND_HALF_UP))


def format_whole(value: float) -> str:
    """A whole number, its thousands apart: 51,200."""
    return f"{value:,.0f}"
