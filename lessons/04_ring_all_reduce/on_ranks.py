"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import calls, peak_memory, returned
from minidist.mpi.comm import Comm
from minidist.papers.collectives import chunk_sizes

Array = np.ndarray
# The chapter's code takes the place of what a student's all_reduce calls. The other two have to do without.
given = functions("minidist.ring", ("reduce_scatter", "all_gather"))
STANDS_ON = {"reduce_scatter": (), "all_gather": (), "all_reduce": ("reduce_scatter", "all_gather")}


def call(comm: Comm, exercise: ModuleType, x: Array, function: str, size: int, out: str = "") -> dict[str, Any]:
    """What a function returns for this rank's x; x afterwards; and out, if one is given: "apart" from x, or "shared"
    with it, as far as the skeleton says that it may be."""
    sizes = chunk_sizes(size, comm.size)
    start = sum(sizes[: comm.rank])
    mine = slice(start, start + sizes[comm.rank])
    place, x = room(function, x, size, mine, out)
    arguments = (size,) if function == "all_gather" else ()
    options = {} if place is None else {"out": place}
    value = getattr(exercise, function)(comm, x, *arguments, **options)
    is_out = isinstance(value, np.ndarray) and place is not None and np.shares_memory(value, place)
    found, dtype = returned(value), str(getattr(value, "dtype", ""))
    return {"returned": found, "dtype": dtype, "x": x, "out": returned(place), "is out": is_out or place is None}


def room(function: str, x: Array, size: int, mine: slice, out: str) -> tuple[Array | None, Array]:
    """An array for the result, or None; and x, which may be a part of it, or it a part of x."""
    if not out:
        return None, x.copy()
    if out == "apart":
        wanted = {"reduce_scatter": mine.stop - mine.start}.get(function, size)
        return np.full(wanted, -1, x.dtype), x.copy()
    if function == "all_gather":
        whole = np.full(size, -1, x.dtype)
        whole[mine] = x
        return whole, whole[mine]
    x = x.copy()
    return (x[mine] if function == "reduce_scatter" else x), x


def call_measured(comm: Comm, exercise: ModuleType, x: Array) -> dict[str, Any]:
    """all_reduce, and the most memory that it used at a time."""
    value, peak = peak_memory(exercise.all_reduce, comm, x)
    return {"returned": returned(value), "peak": peak}


def call_confined(comm: Comm, exercise: ModuleType, x: Array) -> Any:
    """all_reduce of a large array, on a rank that may take no more memory than that needs; a little of what it
    returned."""
    value = exercise.all_reduce(comm, x)
    return returned(value[:: max(1, len(value) // 8)]) if isinstance(value, np.ndarray) else returned(value)


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


call_pass = calls("pass_right")


def call_steps(comm: Comm, exercise: ModuleType, x: Array, function: str, size: int) -> dict[str, Any]:
    """All N-1 steps of a reduce-scatter or an all-gather, in an array that the steps change: what they are to make, and
    the array before the first step and after each."""
    sizes = chunk_sizes(size, comm.size)
    start = sum(sizes[: comm.rank])
    mine = slice(start, start + sizes[comm.rank])
    work = x.copy()
    if function == "all_gather":
        work = np.full(size, -1 - comm.rank, x.dtype)  # so that one sees where it comes from
        work[mine] = x
    states = [work.copy()]
    for step in range(1, comm.size):
        getattr(exercise, f"{function}_step")(comm, work, step)
        states.append(work.copy())
    return {"returned": work if function == "all_gather" else work[mine].copy(), "states": states}


class OnlySendAndRecv:
    """A communicator with which one must think about who goes first."""

    def __init__(self, comm: Comm) -> None:
        self.rank, self.size, self.send, self.recv = comm.rank, comm.size, comm.send, comm.recv

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"comm.{name} is not to be used here: send and recv alone will do")


def call_exchange(comm: Comm, exercise: ModuleType, x: Array) -> dict[str, Any]:
    """Everyone's x one place on, around the ring."""
    out = np.full_like(x, -1)
    exercise.exchange(OnlySendAndRecv(comm), x, (comm.rank + 1) % comm.size, out, (comm.rank - 1) % comm.size)
    return {"returned": out, "x": x}
