"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import returned, several
from minidist.mpi.comm import Comm

Array = np.ndarray
# The lesson's own functions take the place of what a function may call.
given = functions("answers", ("merge", "positions", "ring_forward", "ring_backward", "sent", "choose"))
STANDS_ON = {
    **dict.fromkeys(("merge", "positions", "ring_backward", "sent"), ()),
    "ring_forward": ("merge",),
    "choose": ("sent",),
}
RETURNS = {"merge": 2, "ring_forward": 2, "ring_backward": 3, "ring_attention": 2, "merge_two": 2}


def plain(value: Any) -> Any:
    """A number, a text or a few of them; of anything else the type."""
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value if isinstance(value, str) else [type(value).__name__]


# ---- without messages ------------------------------------------------------------------------------------------------


def merged(comm: Comm, exercise: ModuleType, mine: list[list[Array]], function: str) -> list[Any]:
    """Of each y, lse and the others the result, and what became of these."""
    found = []
    for arrays in mine:
        handed = [array.copy() for array in arrays]
        value = getattr(exercise, function)(*handed)
        found.append({"returned": several(value, 2), "handed": handed})
    return found


def cuts(comm: Comm, exercise: ModuleType, mine: list[list[int]], function: str) -> list[list[Any]]:
    """Of each (length, n) the positions of all ranks."""
    cut = getattr(exercise, function)
    return [[returned(cut(length, n, rank)) for rank in range(n)] for length, n in mine]


def answers(comm: Comm, exercise: ModuleType, mine: list[list[Any]], function: str) -> list[Any]:
    """What a function returns for each call."""
    found = []
    for call in mine:
        value = getattr(exercise, function)(*call)
        found.append({key: plain(of) for key, of in value.items()} if isinstance(value, dict) else plain(value))
    return found


# ---- around the ring -------------------------------------------------------------------------------------------------


def call(comm: Comm, exercise: ModuleType, mine: list[Array], function: str, at: list[list[int]]) -> dict[str, Any]:
    """What a function of the ring returns for this rank's arrays, and what became of these."""
    handed = [array.copy() for array in mine]
    value = getattr(exercise, function)(comm, *handed, [np.array(of) for of in at])
    return {"returned": several(value, RETURNS[function]), "handed": handed}


def all_own(comm: Comm, exercise: ModuleType, mine: list[Array], sizes: list[int]) -> dict[str, Any]:
    """The positions that the student's cut gives each rank, and attention over these, forward and backward; and which
    scheme is chosen for attention of these sizes."""
    at = [exercise.positions(mine[0].shape[-2], comm.size, rank) for rank in range(comm.size)]
    q, k, v, dy = (np.ascontiguousarray(array[..., at[comm.rank], :]) for array in mine)
    y, lse = exercise.ring_forward(comm, q, k, v, at)
    gradients = exercise.ring_backward(comm, q, k, v, y, lse, dy, at)
    return {"at": [returned(of) for of in at], "arrays": several([y, *gradients], 4),
            "scheme": plain(exercise.choose(*sizes))}  # fmt: skip
