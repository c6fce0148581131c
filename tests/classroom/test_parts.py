"""Parts as declarations: a line that hands arguments to a check, what each rank has returned, names of wrong values."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.checks import gaps, parts_by_function
from minidist.classroom.grading.parts import by_rank, named, on, part, ranks, why
from minidist.classroom.grading.submission import Case, Outcome, lose


class Ran:
    """Returns what it is given, rank by rank."""

    def __init__(self, *values: list[Any]) -> None:
        self.values, self.asked = values, list[Any]()

    def run(self, target: str, cases: list[Case], asked: list[str], **how: Any) -> list[list[Outcome]]:
        self.asked.append((target, asked, how))
        return [[Outcome(value, {}) for value in of_case] for of_case in self.values]


def test_a_part_is_its_points_what_it_asks_for_and_a_check() -> None:
    def check(submission: Any, function: str, least: int = 0) -> None:
        if submission.value < least:
            lose(f"{function} returned {submission.value}")

    graded = part(2, "a number", check, "count", least=3)
    [mark] = graded.pytestmark  # type: ignore[attr-defined]
    assert (mark.name, mark.args) == ("points", (2, "a number"))
    graded(SimpleNamespace(value=3))
    with pytest.raises(pytest.fail.Exception, match="count returned 2"):
        graded(SimpleNamespace(value=2))


def test_results_come_rank_by_rank_and_a_case_that_was_not_tried_loses_when_its_turn_comes() -> None:
    cases = [Case(2, ranks(2), [0, 1]), Case(1, ranks(1), [0])]
    ran: Any = Ran([5, 6], [7])
    seen = [(on(case, rank), outcome.value) for case, rank, outcome in by_rank(ran, "call", cases, ["f"], guarded=True)]
    assert seen == [("On 2 ranks: rank 0", 5), ("On 2 ranks: rank 1", 6), ("On 1 rank: rank 0", 7)]
    assert ran.asked == [("call", ["f"], {"guarded": True})]

    def enough(case: Case, outcomes: Any) -> None:
        if case.n == 1:
            lose("nothing was sent")

    found = by_rank(ran, "call", cases, ["f"], enough)
    assert [next(found)[2].value, next(found)[2].value] == [5, 6]
    with pytest.raises(pytest.fail.Exception, match="nothing was sent"):
        next(found)


def test_the_first_wrong_value_that_was_found_has_the_name() -> None:
    wrong = {"its square": 9.0, "the square, too": 9.0, "minus": -3.0}
    assert named(9.0, wrong, math.isclose) == ": its square"
    assert named(-3.0, wrong, math.isclose, before=" It is ") == " It is minus"
    assert named(4.0, wrong, math.isclose) == ""
    assert why({"its square": False, "negative": True, "whole": True}) == "negative"
    assert why({"its square": False}) == ""
    arrays = {"doubled": np.full(2, 2.0), "gone": np.zeros(2)}
    assert named(np.zeros(2), arrays, np.allclose) == ": gone"


def test_parts_of_a_function_are_found_by_the_words_that_they_begin_with() -> None:
    ran: list[str] = []
    words = ("merge: keys", "merge: values", "sort: keys", "merge, sort: together")
    tests = {f"test_{text}": part(1, text, lambda _, text: ran.append(text), text) for text in words}
    found = parts_by_function({**tests, "test": ran})
    assert {*found} == {"merge", "sort", "merge, sort"}
    found["merge"](SimpleNamespace())  # type: ignore[arg-type]
    assert ran == ["merge: keys", "merge: values"]
    assert gaps({"check_one": ran, "check_two": words}, "two") == {"two": words}  # type: ignore[comparison-overlap]
