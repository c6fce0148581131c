"""What the graded parts do with a student's functions, in a process of its own. No points are given here."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minidist.classroom.grading.ranks import calls, copied, returned
from minidist.mpi.comm import Comm

Array = np.ndarray


call = calls(on_ranks=())


# ---- tapes -----------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One operation on a tape."""

    output: int
    inputs: tuple[int, ...]
    backward: Callable[..., Any]
    kept: tuple[Array, ...]


def product(x: Array, w: Array) -> tuple[Array, Any, tuple[Array, ...]]:
    return x @ w, lambda dy, x, w: (dy @ w.T, x.T @ dy), (x, w)


def sine(x: Array) -> tuple[Array, Any, tuple[Array, ...]]:
    return np.sin(x), lambda dy, x: (dy * np.cos(x),), (x,)


def mix(x: Array, y: Array) -> tuple[Array, Any, tuple[Array, ...]]:
    return 2 * x + 3 * y, lambda dy: (2 * dy, 3 * dy), ()


def add(x: Array, y: Array) -> tuple[Array, Any, tuple[Array, ...]]:
    return x + y, lambda dy: (dy, dy), ()


def scale(x: Array, by: Array) -> tuple[Array, Any, tuple[Array, ...]]:
    """`by` is no parameter: it has no gradient."""
    return x * by, lambda dy, by: (dy * by, None), (by,)


OPERATIONS = {function.__name__: function for function in (product, sine, mix, add, scale)}


def walk(comm: Comm, exercise: ModuleType, mine: list[Array], function: str, program: list[Any]) -> dict[str, Any]:
    """The gradients that a function finds on the tape of a program.

    mine: the values 0, 1, ... that no step makes; last, the gradient to start from, of the last step's output.
    program: (operation, numbers of its inputs, number of its output) for each step.
    Also which gradients were changed that a step's backward was handed, or has returned.
    """
    *leaves, gradient = copied(mine)
    values = dict(enumerate(leaves))
    steps: list[Step] = []
    handed: list[tuple[str, Array, Array]] = []
    for number, (name, inputs, output) in enumerate(program):
        values[output], backward, kept = OPERATIONS[name](*(values[i] for i in inputs))
        steps.append(Step(output, tuple(inputs), followed(backward, f"step {number + 1} ({name})", handed), kept))
    found = getattr(exercise, function)(steps, program[-1][2], gradient)
    changed = [words for words, array, before in handed if not np.array_equal(array, before)]
    if not isinstance(found, dict):
        return {"returned": type(found).__name__, "changed": changed}
    of_leaves = [returned(found[i]) if found.get(i) is not None else "None" for i in range(len(leaves))]
    return {"returned": of_leaves, "changed": changed}


def followed(backward: Callable[..., Any], words: str, handed: list[tuple[str, Array, Array]]) -> Callable[..., Any]:
    """The backward, noting what it is handed and what it returns."""

    def call(dy: Array, *kept: Array) -> Any:
        handed.append((f"the gradient that {words} was handed", dy, dy.copy()))
        gradients = backward(dy, *kept)
        handed.extend((f"the gradient that {words} returned", dx, dx.copy()) for dx in gradients if dx is not None)
        return gradients

    return call


# ---- the notebook's first gap ----------------------------------------------------------------------------------------


def slopes(comm: Comm, exercise: ModuleType, x: Array) -> dict[str, Any]:
    """The slope of Σ sin(x) at two places of x, found by trial; x afterwards."""
    found = [exercise.slope(lambda x: float(np.sin(x).sum()), x, index) for index in ((0, 0), (1, 2))]
    return {"returned": [float(value) if np.ndim(value) == 0 and value is not None else "?" for value in found], "x": x}
