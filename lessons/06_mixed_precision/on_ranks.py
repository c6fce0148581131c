"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from collections import namedtuple
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import number, told
from minidist.mpi.comm import Comm

Array = np.ndarray
# The lesson's own functions take the place of what a function calls.
given = functions("answers", ("narrow", "widen", "update", "gradient_norm", "next_scale"))
STANDS_ON = {
    **dict.fromkeys(("narrow", "widen", "next_scale"), ()),
    "update": ("narrow",),
    "gradient_norm": ("widen",),
    "apply_gradients": ("narrow", "widen", "update", "gradient_norm", "next_scale"),
}


# As the skeleton has them.
Piece = namedtuple("Piece", "param grad master")
Scale = namedtuple("Scale", "scale forgiven clean")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def convert(comm: Comm, exercise: ModuleType, mine: Array, function: str, scale: float) -> dict[str, Any]:
    """narrow, widen, or the notebook's `vanished`; and whether that has changed what it was handed."""
    handed = mine.copy()
    value = getattr(exercise, function)(handed, scale)
    changed = not np.array_equal(handed, mine, equal_nan=True)
    return {"returned": told(value), "changed": changed}


def updates(comm: Comm, exercise: ModuleType, mine: Sequence[Array], function: str, times: int) -> dict[str, Any]:
    """The same change, `times` times: the parameters, and the master copy, afterwards."""
    start, change = mine
    master = start.astype(np.float32)
    param = start.astype(np.float16)
    for _ in range(times):
        getattr(exercise, function)(param, master, change.copy())
    return {"param": param, "master": master}


# ---- the norm --------------------------------------------------------------------------------------------------------


def norm(comm: Comm, exercise: ModuleType, mine: Sequence[Array], scale: float) -> dict[str, Any]:
    """gradient_norm of this rank's pieces. As an array, because results over a wire are compared bit by bit."""
    pieces = [Piece(np.zeros_like(grad), grad.copy(), np.zeros(grad.size, np.float32)) for grad in mine]
    with np.errstate(all="ignore"):
        value = number(exercise.gradient_norm(comm, pieces, scale))
    return {"returned": np.array([value]) if isinstance(value, float) else value}


def agree(comm: Comm, exercise: ModuleType, mine: bool) -> dict[str, Any]:
    """The notebook's `any_rank`."""
    value = exercise.any_rank(comm, mine)
    return {"returned": told(value)}


# ---- the scale -------------------------------------------------------------------------------------------------------


def scales(
    comm: Comm, exercise: ModuleType, mine: Sequence[bool], start: Sequence[Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The state after each of some steps; "OverflowError" where that was raised, at which it ends."""
    state, states = Scale(*start), []
    for overflow in mine:
        try:
            found = told(exercise.next_scale(state, overflow, **options))
        except OverflowError:
            states.append("OverflowError")
            break
        states.append(found)
        if not isinstance(found, list) or len(found) != 3 or any(isinstance(part, str) for part in found):
            break
        state = Scale(found[0], int(found[1]), int(found[2]))
    return {"states": states}


def simple_scales(comm: Comm, exercise: ModuleType, mine: Sequence[bool]) -> dict[str, Any]:
    """The same of the notebook's `halve_or_double`, from 1024 on."""
    scale, clean, found = 1024.0, 0, []
    for overflow in mine:
        value = number(exercise.halve_or_double(scale, overflow, clean))
        found.append(value)
        if isinstance(value, str):
            break
        scale, clean = value, 0 if overflow else clean + 1
    return {"scales": found}


# ---- the step --------------------------------------------------------------------------------------------------------


def step(
    comm: Comm, exercise: ModuleType, mine: Sequence[Sequence[Array]], state: Sequence[Any], clip: float
) -> dict[str, Any]:
    """apply_gradients with an optimizer that goes half the gradient down: the pieces afterwards, the next state, and
    for which pieces the optimizer was called."""
    pieces = [Piece(start.astype(np.float16), grad.copy(), start.copy()) for start, grad in mine]
    called: list[int] = []

    def optimizer(number: int, gradient: Array) -> Array:
        called.append(int(number))
        return np.float32(-0.5) * gradient

    with np.errstate(all="ignore"):
        after = exercise.apply_gradients(comm, pieces, Scale(*state), clip, optimizer)
    return {
        "param": [piece.param for piece in pieces],
        "master": [piece.master for piece in pieces],
        "grad": [piece.grad for piece in pieces],
        "state": told(after),
        "called": called,
    }
