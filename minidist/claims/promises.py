"""What a chapter's papers promise of its runs: a value, PROMISES, in the chapter's file in this room.

The program finds it by name (`Chapter.promises` in `minidist/programs/chapter.py`) when there is something to say. So
ranks that print nothing load no claim, no formula and no paper.
"""

from collections.abc import Callable
from dataclasses import dataclass

from minidist.claims.claim import Claim
from minidist.claims.letters import Letters
from minidist.claims.run import Run
from minidist.formulas.needs import Estimate


@dataclass(frozen=True, kw_only=True)
class Promises:
    """What is promised, and what else is said of a run."""

    claims: Callable[[Run], list[Claim]]  # what its papers say about a run, and what was counted
    letters: Callable[[Run], Letters] = lambda run: {}  # what the letters of its claims' formulas mean
    needs: Estimate | None = None  # what each rank's device will need, by formula
    closing: Callable[[Run], object] = lambda run: None  # printed below the claims: what else is to be said of this run
    # Printed with --published: the papers' own tables, by the formulas that checked the run.
    published: Callable[[], object] = lambda: print("Figures of its papers: python -m minidist papers --run")
    whole_run: bool = False  # whether its claims are about all steps together, not about one
