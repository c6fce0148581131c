"""What the tests of several lessons have in common. They run in the process that grades."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidist.classroom.submission import Case, Submission, lose

Array = np.ndarray


def together(*parts: Callable[[Submission], None]) -> Callable[[Submission], None]:
    """All parts on one function: a notebook goes on with it if all are right."""

    def part(submission: Submission) -> None:
        for each in parts:
            each(submission)

    return part


def shape(x: Array | tuple[int, ...]) -> str:
    """An array's, or one of so many numbers, in words: "(2, 3)"."""
    of = x.shape if isinstance(x, np.ndarray) else x
    return f"({', '.join(map(str, of))}{',' * (len(of) == 1)})"


def an_array(each: Case, found: Any, name: str, like: tuple[int, ...]) -> Array:
    """What was returned. Loses the part if it is no array of this shape."""
    if not isinstance(found, np.ndarray):
        lose(f"On {each.label}: {name} is {'None' if found == 'NoneType' else found}, not an array.")
    if found.shape != like:
        lose(f"On {each.label}: {name} has the shape {shape(found)}; {shape(like)} is wanted.")
    return found


def differences(f: Callable[[], Array], x: Array, dy: Array, h: float = 1e-5) -> Array:
    """The slope of Σ dy·f() by each number of x, which f reads: by moving it up and down by h."""
    found = np.empty_like(x)
    for index in np.ndindex(x.shape):
        before = x[index]
        x[index] = before + h
        above = f()
        x[index] = before - h
        found[index] = (dy * (above - f())).sum() / (2 * h)
        x[index] = before
    return found
