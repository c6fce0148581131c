"""What the graded parts let the ranks do with a student's functions. No points are given here."""

import tracemalloc
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import answers, arrays_held, calls, returned, whole
from minidist.mpi.comm import Comm

Array = np.ndarray
given = functions("answers", ("run_segment",))  # run_backward is asked for with the lesson's own in its place

# ---- layers that see what is held ------------------------------------------------------------------------------------


class Held:
    """Arrays of one kind, for as long as they live."""

    def __init__(self) -> None:
        self.references: list[weakref.ref] = []

    def __call__(self, array: Array) -> Array:
        self.references.append(weakref.ref(array))
        return array

    def count(self) -> int:
        return sum(reference() is not None for reference in self.references)


class Watch:
    """What was called, in order, and how many arrays were there then. Copies are seen by a watch that measures: it
    counts the bytes that have been allocated since it was made."""

    def __init__(self, measures: bool = False) -> None:
        self.made, self.inputs, self.kept = Held(), Held(), Held()
        self.calls: list[tuple[str, int, int, int, int]] = []  # (method, layer, how many made, inputs and kept)
        self.nbytes: list[tuple[str, int, int]] = []  # (method, layer, bytes held), if it measures
        self.list: list[Array] = []  # that run_backward is handed
        self.listed: list[int] = []  # how many were in it at each call
        if measures:
            tracemalloc.start()
        self.witness = np.zeros(1) if measures else None

    def note(self, method: str, number: int) -> None:
        self.calls.append((method, number, self.made.count(), self.inputs.count(), self.kept.count()))
        self.listed.append(len(self.list))
        if self.witness is not None:
            self.nbytes.append((method, number, arrays_held(self.witness)))


class Layer:
    """y = tanh(x w), x (rows, C), w (C, C). Of each call something else is kept, by which it is known again."""

    def __init__(self, number: int, w: Array, watch: Watch) -> None:
        self.number, self.w, self.watch, self.dw = number, w, watch, np.zeros_like(w)

    def forward(self, x: Array) -> tuple[Array, list[Array]]:
        y = self.watch.made(np.tanh(x @ self.w))
        kept = [self.watch.kept(x.copy()), 1 - y * y]
        self.watch.note("forward", self.number)
        return y, kept

    def backward(self, dy: Array, kept: Sequence[Array]) -> Array:
        self.watch.note("backward", self.number)
        x, slope = kept
        dz = dy * slope
        self.dw += x.T @ dz
        return dz @ self.w.T


def told(watch: Watch, layers: Sequence[Layer]) -> dict[str, Any]:
    calls, nbytes = [list(call) for call in watch.calls], [list(call) for call in watch.nbytes]
    return {"calls": calls, "nbytes": nbytes, "dw": [layer.dw for layer in layers]}


def forward(comm: Comm, exercise: ModuleType, mine: list[Array], k: int, measured: bool = False) -> dict[str, Any]:
    """run_forward of x, through layers with the matrices w: mine = [x, w, w, ...]."""
    watch = Watch(measured)
    layers = [Layer(number, w, watch) for number, w in enumerate(mine[1:])]
    value = exercise.run_forward(layers, mine[0].copy(), k)
    if not isinstance(value, tuple | list) or len(value) != 2 or not isinstance(value[1], list | tuple):
        return told(watch, layers)
    y, inputs = value
    return {"returned": returned(y), "inputs": [returned(each) for each in inputs], **told(watch, layers)}


def segment(
    comm: Comm, exercise: ModuleType, mine: list[Array], function: str, measured: bool = False
) -> dict[str, Any]:
    """The gradient of x, and those of the matrices: mine = [x, dy, w, w, ...]."""
    watch = Watch(measured)
    layers = [Layer(number, w, watch) for number, w in enumerate(mine[2:])]
    dx = getattr(exercise, function)(layers, mine[0].copy(), mine[1].copy())
    return {"returned": returned(dx), **told(watch, layers)}


def backward(comm: Comm, exercise: ModuleType, mine: list[Array], k: int) -> dict[str, Any]:
    """run_backward, from inputs that are made here: mine = [x, dy, w, w, ...]."""
    watch = Watch()
    layers = [Layer(number, w, watch) for number, w in enumerate(mine[2:])]
    x, inputs = mine[0], watch.list
    for number, w in enumerate(mine[2:]):
        if number % k == 0:
            inputs.append(watch.inputs(x.copy()))
        x = np.tanh(x @ w)
    dx = exercise.run_backward(layers, inputs, k, mine[1].copy())
    return {"returned": returned(dx), "left": len(inputs), "listed": watch.listed, **told(watch, layers)}


# ---- masks, intervals ------------------------------------------------------------------------------------------------


def masks(comm: Comm, exercise: ModuleType, mine: list[Any], function: str = "mask") -> dict[str, Any]:
    """Masks for the arguments in `mine`, asked for one after the other; and whether NumPy's own generator went on."""
    np.random.seed(comm.rank + 5)
    before = np.random.get_state()[1:3]
    found = []
    for arguments in mine:
        found.append(returned(getattr(exercise, function)(*arguments)))
    after = np.random.get_state()[1:3]
    return {"returned": found, "moved": not (np.array_equal(before[0], after[0]) and before[1] == after[1])}


intervals = answers("best_interval", whole)


# ---- parts of an input -----------------------------------------------------------------------------------------------


def cutting(comm: Comm, exercise: ModuleType, x: Array) -> dict[str, Any]:
    """This rank's part of x; x afterwards; whether the part lives in memory of its own, of its own size."""
    handed = x.copy()
    part = exercise.cut(comm, handed)
    root = part
    while isinstance(root, np.ndarray) and isinstance(root.base, np.ndarray):
        root = root.base
    return {"returned": returned(part), "x": handed, "holds": root.nbytes if isinstance(root, np.ndarray) else 0}


joining = calls("whole")


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def bytes_kept(comm: Comm, exercise: ModuleType, mine: list[Array], places: list[int]) -> Any:
    """kept_bytes of some arrays, named by their places; some come twice."""
    return whole(exercise.kept_bytes([mine[place] for place in places]))


def part_of(comm: Comm, exercise: ModuleType, x: Array, t: int) -> dict[str, Any]:
    parts, own = [], []
    for rank in range(t):
        part = exercise.my_part(x, rank, t)
        parts.append(returned(part))
        own.append(isinstance(part, np.ndarray) and not np.shares_memory(part, x))
    return {"returned": parts, "own": own}
