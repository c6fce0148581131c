"""A number that a paper prints: its place, how it is reproduced here, and the evidence that it is printed so.

Each paper's module declares its figures once, next to their formula, as `FIGURES`; chapters and lessons use these. A
figure is only entered if it was read, not from memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

Evidence = Literal["the paper", "a second source", "code"]
SECOND: Evidence = "a second source"


@dataclass(frozen=True)
class Figure:
    """One printed number. A computed figure has the value that its formula gives. A measured figure comes from a run,
    on ranks or on the authors' cluster, and has no value."""

    source: str  # the paper, and its table, figure or section
    cell: str  # which of its numbers
    printed: str  # as it stands there
    unit: str
    formula: str  # how it comes out
    value: float | None = None
    bounds: tuple[float, float] | None = None  # of the value, if the formula starts from rounded numbers
    evidence: Evidence = "the paper"  # where it was read
    differs: str = ""  # why it does not come out as printed, if the paper disagrees with itself
    # As the source rounds what it prints: by default to as many digits as that has.
    rounded: Callable[[float], str] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.rounded is None:
            object.__setattr__(self, "rounded", digits_of(self.printed))

    def shown(self, measured: float | None = None) -> str:
        """The formula's value, or a run's, as the source would print it. Raises ValueError if a measured figure has no
        value from a run."""
        value = self.value if measured is None else measured
        if value is None:
            raise ValueError(f"{self.source}, {self.cell}: no formula gives it, only a run on ranks")
        return self.rounded(value)

    def agrees(self, measured: float | None = None) -> bool:
        """Whether `shown` is what is printed or, without a run, the printed number lies within the bounds."""
        if measured is None and self.bounds:
            least, most = map(self.rounded, self.bounds)
            return plain(least) <= plain(self.printed) <= plain(most)
        return self.shown(measured) == self.printed


def plain(printed: str) -> float:
    """A printed number as a number."""
    return float(printed.replace(",", ""))


def from_rounded(formula: Callable[[float], float], printed: str) -> tuple[float, tuple[float, float]]:
    """The formula's value for a number that is printed rounded, and its bounds: for the smallest and the largest number
    that it may stand for, half of its last digit away."""
    number = Decimal(printed.replace(",", ""))
    half = Decimal(5).scaleb(int(number.as_tuple().exponent) - 1)
    ends = sorted(formula(float(end)) for end in (number - half, number + half))
    return formula(float(number)), (ends[0], ends[1])


def digits_of(printed: str) -> Callable[[float], str]:
    """A function that rounds to as many digits as a printed number has."""
    return format_whole if "," in printed else decimals(len(printed.partition(".")[2]))


def decimals(n: int) -> Callable[[float], str]:
    """A function that rounds to n decimals, halves up: 41.25 to 41.3, where Python's own rounding gives 41.2."""
    step = Decimal(1).scaleb(-n)
    return lambda value: str(Decimal(str(float(value))).quantize(step, ROUND_HALF_UP))


def format_whole(value: float) -> str:
    """A whole number, with commas between thousands: 51,200."""
    return f"{value:,.0f}"
