"""What a chapter's papers promise of its runs: a value, PROMISES, in the chapter's file in this room.

The program finds it by name (`Chapter.promises` in `minidist/programs/chapter.py`) when there is something to say. So
ranks that print nothing load no claim, no formula and no paper.
"""

from typing import ClassVar

from minidist.claims.claim import Claim
from minidist.claims.letters import Letters
from minidist.claims.run import Run
from minidist.formulas.needs import Estimate


class Promises:
    """What is promised, and what else is said of a run."""

    whole_run: ClassVar[bool] = False  # whether its claims are about all steps together, not about one
    needs: ClassVar[Estimate | None] = None  # what each rank's device will need, by formula

    def claims(self, run: Run) -> list[Claim]:
        """What its papers say about a run, and what was counted."""
        raise NotImplementedError

    def letters(self, run: Run) -> Letters:
        """What the letters of its claims' formulas mean."""
        return {}

    def closing(self, run: Run) -> None:
        """Printed below the claims: what else is to be said of this run."""

    def published(self) -> None:
        """Printed with --published: the papers' own tables, by the formulas that checked the run."""
        print("Figures of its papers: python -m minidist papers --run")
