"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.ranks import peak_memory, returned
from minidist.mpi.comm import Comm


def call(comm: Comm, exercise: ModuleType, x: np.ndarray, function: str, size: int) -> dict[str, Any]:
    """What a function returns for this rank's x, and x afterwards."""
    given = (size,) if function == "all_gather" else ()
    value = getattr(exercise, function)(comm, x, *given)
    return {"returned": returned(value), "x": x}


def call_in_place(comm: Comm, exercise: ModuleType, x: np.ndarray) -> dict[str, Any]:
    """all_reduce with out=x."""
    value = exercise.all_reduce(comm, x, out=x)
    return {"returned": returned(value), "x": x}


def call_measured(comm: Comm, exercise: ModuleType, x: np.ndarray) -> dict[str, Any]:
    """all_reduce, and the most memory that it used at a time."""
    value, peak = peak_memory(exercise.all_reduce, comm, x)
    return {"returned": returned(value), "peak": peak}
