"""What the tests of several lessons have in common. They run in the process that grades."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minidist.classroom.submission import Case, Submission, lose

Array = np.ndarray
ROUGH = 1e-6  # relative to the largest element: what finite differences leave


def together(*parts: Callable[[Submission], None]) -> Callable[[Submission], None]:
    """All parts on one function: a notebook goes on with it if all are right."""

    def part(submission: Submission) -> None:
        for each in parts:
            each(submission)

    return part


def shape(x: Array | tuple[int, ...]) -> str:
    """An array's shape, or one given as numbers, in words: "(2, 3)"."""
    of = x.shape if isinstance(x, np.ndarray) else x
    return f"({', '.join(map(str, of))}{',' * (len(of) == 1)})"


def an_array(each: Case, found: Any, name: str, like: tuple[int, ...]) -> Array:
    """What was returned. Loses the part if it is no array of this shape."""
    if not isinstance(found, np.ndarray):
        lose(f"On {each.label}: {name} is {'None' if found == 'NoneType' else found}, not an array.")
    if found.shape != like:
        lose(f"On {each.label}: {name} has the shape {shape(found)}; {shape(like)} is wanted.")
    return found


def same(found: Array, expected: Array) -> bool:
    """Whether both are equal, except for what finite differences leave."""
    largest = float(np.abs(expected).max(initial=0.0)) or 1.0
    return found.shape == expected.shape and bool(np.all(np.abs(found - expected) <= ROUGH * largest))


def is_right(check: Callable[..., None], *arguments: Any) -> bool:
    """Whether the check loses nothing."""
    try:
        check(*arguments)
    except pytest.fail.Exception:
        return False
    return True


def factor_of(found: Array, expected: Array) -> float | None:
    """The number by which all that is expected is multiplied in what was found; None if there is none."""
    if not expected.size or np.array_equal(found, expected):
        return 1.0
    factor, rounding = float(found[0]) / float(expected[0]), 4 * np.finfo(expected.dtype).eps
    alike = np.isfinite(factor) and factor != 0 and np.allclose(found, factor * expected, rtol=rounding, atol=0)
    return factor if alike else None


def differences(f: Callable[[], Array | float], x: Array, dy: Array | float = 1.0, h: float = 1e-5) -> Array:
    """The slope of Σ dy·f() by each number of x, which f reads: by moving it up and down by h."""
    found = np.empty_like(x)
    for index in np.ndindex(x.shape):
        before = x[index]
        x[index] = before + h
        above = f()
        x[index] = before - h
        found[index] = np.sum(dy * (above - f())) / (2 * h)
        x[index] = before
    return found
