"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading import ranks
from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import calls, copied, returned, told
from minidist.mpi.comm import Comm

Array = np.ndarray
# The lesson's own functions take the place of what a function may call.
given = functions("answers", ("merge", "positions", "ring_forward", "ring_backward", "sent", "choose"))
STANDS_ON = {
    **dict.fromkeys(("merge", "positions", "ring_backward", "sent"), ()),
    "ring_forward": ("merge",),
    "choose": ("sent",),
}


# ---- without messages ------------------------------------------------------------------------------------------------


merged = calls(on_ranks=())


def cuts(comm: Comm, exercise: ModuleType, mine: list[list[int]], function: str) -> list[list[Any]]:
    """Of each (length, n) the positions of all ranks."""
    cut = getattr(exercise, function)
    return [[returned(cut(length, n, rank)) for rank in range(n)] for length, n in mine]


answers = ranks.answers(told=partial(told, texts=True))


# ---- around the ring -------------------------------------------------------------------------------------------------


def call(comm: Comm, exercise: ModuleType, mine: list[Array], function: str, at: list[list[int]]) -> dict[str, Any]:
    """What a function of the ring returns for this rank's arrays, and what became of these."""
    handed = copied(mine)
    value = getattr(exercise, function)(comm, *handed, [np.array(of) for of in at])
    return {"returned": told(value), "handed": handed}


def all_own(comm: Comm, exercise: ModuleType, mine: list[Array], sizes: list[int]) -> dict[str, Any]:
    """The positions that the student's cut gives each rank, and attention over these, forward and backward; and which
    scheme is chosen for attention of these sizes."""
    at = [exercise.positions(mine[0].shape[-2], comm.size, rank) for rank in range(comm.size)]
    q, k, v, dy = (np.ascontiguousarray(array[..., at[comm.rank], :]) for array in mine)
    y, lse = exercise.ring_forward(comm, q, k, v, at)
    gradients = exercise.ring_backward(comm, q, k, v, y, lse, dy, at)
    return {"at": [returned(of) for of in at], "arrays": told([y, *gradients]),
            "scheme": told(exercise.choose(*sizes), texts=True)}  # fmt: skip
