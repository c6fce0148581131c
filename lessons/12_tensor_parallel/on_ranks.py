"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.ranks import returned
from minidist.mpi.comm import Comm

Array = np.ndarray


def number(value: Any) -> Any:
    """A number as it is, of others the type."""
    return float(value) if np.isscalar(value) and np.isreal(value) else returned(value)


def several(value: Any, count: int) -> list[Any] | str:
    """What a function returned that is to return `count` things; else the type."""
    if not isinstance(value, tuple | list) or len(value) != count:
        return type(value).__name__
    return [number(each) for each in value]


# ---- matrices --------------------------------------------------------------------------------------------------------


def cut(comm: Comm, exercise: ModuleType, w: Array, sections: list[int], t: int) -> dict[str, Any]:
    """Every rank's columns of w; of the sections together, and of each alone."""
    starts = np.cumsum([0, *sections])
    alone = [w[:, start:end].copy() for start, end in pairwise(starts)]
    parts, own = [], []
    for rank in range(t):
        part = exercise.column_part(w, list(sections), t, rank)
        parts.append(returned(part))
        own.append(isinstance(part, np.ndarray) and not np.shares_memory(part, w))
    each = [
        [returned(exercise.column_part(section, [section.shape[1]], t, rank)) for section in alone] for rank in range(t)
    ]
    return {"returned": parts, "own": own, "alone": each}


def forward(comm: Comm, exercise: ModuleType, mine: list[Array], function: str) -> dict[str, Any]:
    """y of x, w and bias, and what became of these."""
    handed = [array.copy() for array in mine]
    y = getattr(exercise, function)(comm, *handed)
    return {"returned": returned(y), "handed": handed}


def backward(comm: Comm, exercise: ModuleType, mine: list[Array], function: str) -> dict[str, Any]:
    """dx, dw and dbias of x, w and dy, and what became of these."""
    handed = [array.copy() for array in mine]
    gradients = getattr(exercise, function)(comm, *handed)
    return {"returned": several(gradients, 3), "handed": handed}


# ---- masks and the loss ----------------------------------------------------------------------------------------------


def masks(comm: Comm, exercise: ModuleType, mine: Sequence[Any]) -> list[Any]:
    """Masks for the arguments in `mine`, asked for one after the other."""
    found = []
    for key, shape, p, part in mine:
        found.append(returned(exercise.dropout_mask(tuple(key), tuple(shape), p, tuple(part))))
    return found


def loss(comm: Comm, exercise: ModuleType, mine: list[Array]) -> dict[str, Any]:
    """The loss and this rank's probabilities, from its logits and all targets."""
    handed = [array.copy() for array in mine]
    value = exercise.loss_forward(comm, *handed)
    return {"returned": several(value, 2), "handed": handed}


def slope(comm: Comm, exercise: ModuleType, mine: list[Array]) -> dict[str, Any]:
    handed = [array.copy() for array in mine]
    value = exercise.loss_backward(comm, *handed)
    return {"returned": returned(value), "handed": handed}


# ---- positions -------------------------------------------------------------------------------------------------------


def positions(comm: Comm, exercise: ModuleType, mine: Array, function: str) -> dict[str, Any]:
    handed = mine.copy()
    value = getattr(exercise, function)(comm, handed)
    return {"returned": returned(value), "handed": [handed]}


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def both_parts(comm: Comm, exercise: ModuleType, mine: list[Array], t: int) -> Any:
    """Every rank's columns of A and rows of B."""
    return [several(exercise.cut_both(*[array.copy() for array in mine], t, rank), 2) for rank in range(t)]


def qkv_parts(comm: Comm, exercise: ModuleType, w: Array, t: int) -> list[Any]:
    return [returned(exercise.cut_qkv(w.copy(), t, rank)) for rank in range(t)]


def mlp(comm: Comm, exercise: ModuleType, mine: list[Array]) -> dict[str, Any]:
    return {"returned": several(exercise.mlp_forward(comm, *[array.copy() for array in mine]), 2)}


def mlp_back(comm: Comm, exercise: ModuleType, mine: list[Array]) -> dict[str, Any]:
    return {"returned": several(exercise.mlp_backward(comm, *[array.copy() for array in mine]), 3)}


def cut_vocabulary(comm: Comm, exercise: ModuleType, mine: list[Array]) -> dict[str, Any]:
    return {"returned": number(exercise.cut_loss(comm, *[array.copy() for array in mine]))}
