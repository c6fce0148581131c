"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.ranks import answers, calls, copied, returned, told
from minidist.mpi.comm import Comm

Array = np.ndarray


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


call = calls()


# ---- masks and the loss ----------------------------------------------------------------------------------------------


masks = answers("dropout_mask")
loss = calls("loss_forward")  # the loss and this rank's probabilities, of its logits and all targets
slope = calls("loss_backward")


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def both_parts(comm: Comm, exercise: ModuleType, mine: list[Array], t: int) -> Any:
    """Every rank's columns of A and rows of B."""
    return [told(exercise.cut_both(*copied(mine), t, rank)) for rank in range(t)]


def qkv_parts(comm: Comm, exercise: ModuleType, w: Array, t: int) -> list[Any]:
    return [returned(exercise.cut_qkv(w.copy(), t, rank)) for rank in range(t)]


mlp = calls("mlp_forward")
mlp_back = calls("mlp_backward")
cut_vocabulary = calls("cut_loss")
