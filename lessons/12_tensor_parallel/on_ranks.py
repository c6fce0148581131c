"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.ranks import calls, returned, several
from minidist.mpi.comm import Comm

Array = np.ndarray


def number(value: Any) -> Any:
    """A number as it is, of others the type."""
    return float(value) if np.isscalar(value) and np.isreal(value) else returned(value)


def things(count: int) -> Callable[[Any], Any]:
    return partial(several, count=count, told=number)


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


forward = calls()  # y of x, w and bias
backward = calls(told=things(3))  # dx, dw and dbias of x, w and dy


# ---- masks and the loss ----------------------------------------------------------------------------------------------


def masks(comm: Comm, exercise: ModuleType, mine: Sequence[Any]) -> list[Any]:
    """Masks for the arguments in `mine`, asked for one after the other."""
    found = []
    for key, shape, p, part in mine:
        found.append(returned(exercise.dropout_mask(tuple(key), tuple(shape), p, tuple(part))))
    return found


loss = calls("loss_forward", things(2))  # the loss and this rank's probabilities, of its logits and all targets
slope = calls("loss_backward")
positions = calls()


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def both_parts(comm: Comm, exercise: ModuleType, mine: list[Array], t: int) -> Any:
    """Every rank's columns of A and rows of B."""
    return [things(2)(exercise.cut_both(*[array.copy() for array in mine], t, rank)) for rank in range(t)]


def qkv_parts(comm: Comm, exercise: ModuleType, w: Array, t: int) -> list[Any]:
    return [returned(exercise.cut_qkv(w.copy(), t, rank)) for rank in range(t)]


mlp = calls("mlp_forward", things(2))
mlp_back = calls("mlp_backward", things(3))
cut_vocabulary = calls("cut_loss", number)
