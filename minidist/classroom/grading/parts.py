"""What declarations of graded parts are made of: what ranks return, and the names of wrong values.

A part runs cases, knows the truth, and has a name for each wrong value that says which mistake was made:

    for run, rank, outcome in by_rank(submission, "norm", cases, ["norm_of"]):
        wrong = {"it is its square: take the root": norm**2}
        if not np.isclose(outcome.value, norm):
            lose(f"{on(run, rank)} has the norm {outcome.value}{named(outcome.value, wrong, np.isclose)}.")

Where several parts differ only in what they hand to a check, each is a line:

    test_norm = part(2, "the norm of all ranks' numbers", check_norm, "norm_of")
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest

from minidist.classroom.grading.submission import Case, Outcome, Submission

C = TypeVar("C", bound=Case)
LARGEST = 40_000  # elements


def part(points: float, asks: str, check: Callable[..., None], *arguments: Any, **more: Any) -> Callable[..., None]:
    """A graded part: what it asks for, and the check with its arguments that loses it."""

    @pytest.mark.points(points, asks)
    def graded(submission: Submission) -> None:
        check(submission, *arguments, **more)

    return graded


def large(submission: Submission, multiple_of: int = 1, least: int = 1_000, most: int = LARGEST) -> int:
    """A size that no program knows, for what is right for a few elements: small ones are as likely as large ones, and
    cheaper."""
    drawn = int(math.exp(submission.random.uniform(math.log(least), math.log(most))))
    return drawn // multiple_of * multiple_of


def ask(submission: Submission, target: str, function: str, given: Any, label: str = "", /, **arguments: Any) -> Any:
    """What one rank brings back that was given this, where `function` is asked for. label: its name if not given."""
    [[outcome]] = submission.run(target, [Case(1, label or function, [given], arguments)], [function])
    return outcome.value


def alone(submission: Submission, target: str, asked: str, cases: Sequence[Case]) -> list[Any]:
    """What each case of one rank brings back."""
    return [outcome.value for [outcome] in submission.run(target, cases, [asked])]


def by_case(
    submission: Submission, target: str, cases: Sequence[C], asked: Sequence[str], **how: Any
) -> Iterator[tuple[C, list[Outcome]]]:
    """Run the cases; go through what the ranks of each have returned."""
    return zip(cases, submission.run(target, cases, asked, **how), strict=True)


def by_rank(
    submission: Submission,
    target: str,
    cases: Sequence[C],
    asked: Sequence[str],
    enough: Callable[[C, Sequence[Outcome]], None] | None = None,
    **how: Any,
) -> Iterator[tuple[C, int, Outcome]]:
    """The same, rank by rank. enough: loses the part if a case has not even been tried."""
    for case, outcomes in by_case(submission, target, cases, asked, **how):
        if enough:
            enough(case, outcomes)
        for rank, outcome in enumerate(outcomes):
            yield case, rank, outcome


def on(case: Case, rank: int) -> str:
    """ "On 4 ranks, 7 elements: rank 3": where messages begin."""
    return f"On {case.label}: rank {rank}"


def describe(found: Any) -> str:
    """In words, what a function returned that should have returned something else."""
    if isinstance(found, np.ndarray):
        return f"an array {found.shape}"
    if isinstance(found, list):
        return f"{len(found)} things"
    return "None" if isinstance(found, str) and found == "NoneType" else str(found)


def ranks(n: int) -> str:
    return f"{n} rank{'s' * (n > 1)}"


def named(found: Any, wrong: Mapping[str, Any], alike: Callable[[Any, Any], Any], before: str = ": ") -> str:
    """The name of the first of these wrong values that was found, after `before`; "" if it is none of them."""
    return next((f"{before}{name}" for name, value in wrong.items() if alike(found, value)), "")


def why(reasons: Mapping[str, Any]) -> str:
    """The first of these words whose condition holds; "" if none does."""
    return next((words for words, holds in reasons.items() if holds), "")
