"""Checks that the tests of several lessons share. They run in the process that grades."""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from minidist.classroom.grading.parts import describe, named
from minidist.classroom.grading.submission import Case, Lost, Outcome, Submission, lose

Array = np.ndarray
NONE: Mapping[str, Any] = MappingProxyType({})  # no mistake is known
ROUGH = 1e-6  # the error of finite differences, relative to the largest element


def together(*parts: Callable[[Submission], None]) -> Callable[[Submission], None]:
    """Combine all parts on one function: a notebook goes on with the function if it passes all of them."""

    def part(submission: Submission) -> None:
        for each in parts:
            each(submission)

    return part


def parts_by_function(tests: Mapping[str, Any]) -> dict[str, Callable[[Submission], None]]:
    """Of a lesson's tests those of each function, combined: their words begin with its name, "merge: reads no further
    than it must"."""
    found: dict[str, list[Any]] = {}
    for test in tests.values():
        for mark in getattr(test, "pytestmark", ()):
            found.setdefault(mark.args[1].partition(":")[0], []).append(test)
    return {function: together(*parts) for function, parts in found.items()}


def gaps(tests: Mapping[str, Any], *names: str) -> dict[str, Callable[[Submission], None]]:
    """The checks of the notebook's gaps, by their names: check_NAME."""
    return {name: tests[f"check_{name}"] for name in names}


def check_all_own(
    submission: Submission,
    target: str,
    cases: Sequence[Case],
    asked: Sequence[str],
    check: Callable[[Any, Sequence[Outcome]], None],
) -> None:
    """Check all functions together, all the student's own, so that none can leave its work to the lesson's. A fault
    that one of them also shows alone costs nothing here: another part asks for that function."""

    def why_wrong(names: Sequence[str]) -> str:
        try:
            for case, outcomes in zip(cases, submission.attempt(target, cases, names), strict=True):
                check(case, outcomes)
        except (Lost, pytest.fail.Exception) as lost:
            return str(lost)
        return ""

    if (why := why_wrong(asked)) and not any(why_wrong([name]) for name in asked):
        lose(
            f"Each of {', '.join(asked)} works with the lesson's own in place of the others; together they fail.\n{why}"
        )


def fail_together(
    submission: Submission,
    lost: BaseException,
    alone: Sequence[Callable[[Submission], None]],
    most: int,
    words: str = "Each function does what it should; together they fail.",
) -> None:
    """Lose the part on all functions together, which fail, if each of them is right alone; or if more than `most` of
    the parts on single functions are lost, too. Fewer cost their points there alone."""
    if "is not written yet" in str(lost) or submission.in_every_part:
        lose(str(lost))
    wrong = sum(not is_right(part, submission) for part in alone)
    if not wrong:
        lose(f"{words}\n{lost}")
    if wrong > most:
        lose(f"{wrong} parts on single functions are lost. This part asks for a program that works.\n{lost}")


def check_trains_alike(submission: Submission, run: Case, methods: Sequence[str]) -> None:
    """`check_all_own` for an engine's methods: training with them gives the same losses as with the lesson's own."""
    [right] = submission.run("train", [run])

    def check(_: Any, outcomes: Sequence[Outcome]) -> None:
        for rank, (found, expected) in enumerate(zip(outcomes, right, strict=True)):
            if not np.allclose(found.value, expected.value, rtol=1e-9):
                lose(f"On {run.label}: rank {rank}'s losses are {found.value}; {expected.value} are wanted.")

    check_all_own(submission, "train", [run], methods, check)


def run_and_blame(submission: Submission, target: str, cases: Sequence[Case], asked: Sequence[str]) -> Any:
    """Run several functions together. If that fails, name the one that also fails with the lesson's own others."""
    try:
        return submission.attempt(target, cases, asked)
    except Lost as together:
        for name in asked:
            try:
                submission.attempt(target, cases, [name])
            except Lost as alone:
                lose(f"The fault is in {name}: with the lesson's own in place of the others it fails, too.\n{alone}")
        lose(str(together))


@cache
def lessons_own(test_file: str, name: str) -> Callable[..., Any]:
    """A function of the lesson's answers.py, not of a test, because students get that file sealed. It imports the
    lesson's given.py, and another lesson has another one."""
    file = Path(test_file).with_name("answers.py")
    spec = importlib.util.spec_from_file_location(f"answers_of_{file.parent.name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    before = sys.modules.pop("given", None)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
        sys.modules.pop("given", None)
        sys.modules |= {"given": before} if before else {}
    return getattr(module, name)


def shape(x: Array | tuple[int, ...]) -> str:
    """An array's shape, or a shape given as numbers, as text: "(2, 3)"."""
    of = x.shape if isinstance(x, np.ndarray) else x
    return f"({', '.join(map(str, of))}{',' * (len(of) == 1)})"


def an_array(each: Case, found: Any, name: str, like: tuple[int, ...] | Array) -> Array:
    """Return `found`. Loses the part if it is not an array of this shape, or of that array's shape and dtype."""
    if not isinstance(found, np.ndarray):
        lose(f"On {each.label}: {name} is {describe(found)}, not an array.")
    if isinstance(like, np.ndarray) and found.dtype != like.dtype:
        lose(f"On {each.label}: {name} is {found.dtype}; {like.dtype} is wanted.")
    if shape(found) != shape(like):
        lose(f"On {each.label}: {name} has the shape {shape(found)}; {shape(like)} is wanted.")
    return found


def things(where: str, value: Any, names: Sequence[str]) -> list[Any]:
    """`value`, if it is a list with a thing for each name. Else the part is lost."""
    if not isinstance(value, list) or len(value) != len(names):
        lose(f"{where} returned {describe(value)}; return {', '.join(names[:-1])} and {names[-1]}.")
    return value


def same(found: Array, expected: Array, tolerance: float = ROUGH) -> bool:
    """Whether both are equal within this part of the largest element; by default, what finite differences leave."""
    largest = float(np.abs(expected).max(initial=0.0)) or 1.0
    return found.shape == expected.shape and bool(np.all(np.abs(found - expected) <= tolerance * largest))


def multiple(found: Array, expected: Array) -> float | None:
    """The factor, if `found` is a multiple of `expected`; otherwise None."""
    factor = float((found * expected).sum() / ((expected**2).sum() or 1.0)) if np.isfinite(found).all() else 0.0
    return factor if factor and same(found, factor * expected) else None


def check_array(each: Case, found: Any, name: str, expected: Array, mistakes: Mapping[str, Array] = NONE) -> None:
    """That an array is as expected. mistakes: what it may be instead, by what is then to be said."""
    found = an_array(each, found, name, expected.shape)
    if not same(found, expected):
        at = tuple(int(i) for i in np.unravel_index(np.argmax(~np.isclose(found, expected)), expected.shape))
        here = f"[{', '.join(map(str, at))}] is {found[at]:.6g}, and {expected[at]:.6g} is wanted."
        said = named(found, mistakes, same, before=" ") or times(found, expected)
        lose(f"On {each.label}: {name} is wrong: {here}{said}")


def times(found: Array, expected: Array) -> str:
    """By what all of it is multiplied, in words; "" if that is no one number."""
    factor = multiple(found, expected)
    return "" if factor is None else f" All of it is {factor:.4g} times what it should be."


def check_handed(label: str, handed: Sequence[Array], inputs: Sequence[Array], names: Sequence[str]) -> None:
    """That arrays which a function was handed are as they were."""
    for name, now, before in zip(names, handed, inputs, strict=False):
        if not np.array_equal(now, before):
            lose(f"On {label}: {name} was changed.")


def is_right(check: Callable[..., None], *arguments: Any) -> bool:
    """Whether the check passes."""
    try:
        check(*arguments)
    except pytest.fail.Exception:
        return False
    return True


def factor_of(found: Array, expected: Array) -> float | None:
    """The factor with which found = factor * expected; None if there is none."""
    if not expected.size or np.array_equal(found, expected):
        return 1.0
    factor, rounding = float(found[0]) / float(expected[0]), 4 * np.finfo(expected.dtype).eps
    alike = np.isfinite(factor) and factor != 0 and np.allclose(found, factor * expected, rtol=rounding, atol=0)
    return factor if alike else None


def differences(f: Callable[[], Array | float], x: Array, dy: Array | float = 1.0, h: float = 1e-5) -> Array:
    """The gradient of Σ dy·f() with respect to x, which f reads: each number of x is moved up and down by h."""
    found = np.empty_like(x)
    for index in np.ndindex(x.shape):
        before = x[index]
        x[index] = before + h
        above = f()
        x[index] = before - h
        found[index] = np.sum(dy * (above - f())) / (2 * h)
        x[index] = before
    return found
