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

    def shown(self, measured: float | None = None) -> str:
        """What the formula gives, or a run has given, as the source would print it. Raises ValueError if a measured
        figure is asked for without the run's."""
        value = self.value if measured is None else measured
        if value is None:
            raise ValueError(f"{self.source}, {self.cell}: no formula gives it, only a run on ranks")
        return self.rounded(value)

    def agrees(self, measured: float | None = None) -> bool:
        """Whether that is what is printed."""
        return self.shown(measured) == self.printed


def decimals(n: int) -> Callable[[float], str]:
    """To n decimals, halves up: 41.25 is 41.3, where Python's own rounding makes it 41.2."""
    step = Decimal(1).scaleb(-n)
    return lambda value: str(Decimal(str(float(value))).quantize(step, ROUND_HALF_UP))


def whole(value: float) -> str:
    """A whole number, its thousands apart: 51,200."""
    return f"{value:,.0f}"
