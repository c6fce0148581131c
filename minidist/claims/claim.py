"""A paper's promise and its counterpart in a run."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Claim:
    """One promise of a paper and its counterpart in this run."""

    source: str  # paper and section
    claim: str  # in words
    formula: str  # as the paper writes it
    expected: float  # the formula's value for this run, padding and (N-1)/N included
    counted: float  # what was held or sent
    unit: str
    scope: Literal["each rank", "all ranks"] = "each rank"  # where it was counted: on each rank, or on all together
    within: float = 0.0  # how far the two may be apart, relative or absolute: a loss is rounded, a count is not

    @property
    def holds(self) -> bool:
        """Counts are whole numbers and formulas are exact, so they agree entirely or not at all; a loss, within
        rounding."""
        return math.isclose(self.expected, self.counted, rel_tol=self.within, abs_tol=self.within)


def on_each_rank(
    source: str, claim: str, formula: str, expected: float | Sequence[float], counted: Sequence[float], unit: str
) -> Claim:
    """A claim about every rank, with the numbers of the first rank on which it does not hold, or else of rank 0.

    expected: one value for all ranks, or one for each.
    """
    promised = list(expected) if isinstance(expected, Sequence) else [expected] * len(counted)
    pairs = list(zip(promised, counted, strict=True))
    worst = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return Claim(source, claim, formula, *worst, unit)


def claims_as_rows(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """The claims for a JSON report."""
    return [{**asdict(claim), "holds": claim.holds} for claim in claims]
