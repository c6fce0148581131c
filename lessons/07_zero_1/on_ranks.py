"""What the graded parts let the ranks do with a student's train_step and ZeRO1. No points are given here.

A part asks for one of the methods; the lesson's own take the place of the others.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from given import Unit

from minidist.classroom.grading import engines
from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import answers, calls, note, number, returned, told
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.optim import SGD
from minidist.nn.precision import PRECISIONS

Array = np.ndarray
METHODS = ("piece", "owned", "reduce", "squared_norm", "after_update")
given = functions("answers", METHODS, of="ZeRO1")


# ---- train_step ------------------------------------------------------------------------------------------------------


def step(
    comm: Comm,
    exercise: ModuleType,
    mine: Sequence[Any],
    clips: Sequence[float],
    batch: int,
    steps: int = 1,
    rate: float = 0.0,
) -> list[dict[str, Any]]:
    """For each limit of the norm, from the start: what each step returned, the gradients that the optimizer was handed
    (number of the unit, array), and the units' arrays after the last step. Changes are this rank's own, if it has some,
    else minus rate times the gradient."""
    params, masters, x, y, changes = mine
    found = []
    for clip in clips:
        units = [
            Unit(param.copy(), np.zeros_like(param), master.copy())
            for param, master in zip(params, masters, strict=True)
        ]
        handed = list[tuple[Any, Any]]()

        def optimizer(i: int, gradient: Array, handed: list[tuple[Any, Any]] = handed) -> Array:
            handed.append((number(i), returned(gradient)))
            if changes is not None:
                return np.array(changes[i])
            return (-rate * np.asarray(gradient)).astype(np.float32)

        said = [told(exercise.train_step(comm, list(units), x, y, batch, clip, optimizer)) for _ in range(steps)]
        arrays = {name: [returned(getattr(unit, name)) for unit in units] for name in Unit._fields}
        found.append({"returned": said, "handed": handed, **arrays})
    return found


# ---- one method ------------------------------------------------------------------------------------------------------


def make(comm: Comm, exercise: ModuleType, model: dict[str, Any], settings: dict[str, Any]) -> Any:
    """A student's engine, with the lesson's methods in place of those that are not asked for."""
    student = exercise.ZeRO1
    methods = {name: given.get(name) or getattr(student, name) for name in METHODS}
    methods |= {"piece": checked_piece(methods["piece"]), "owned": checked_owned(methods["owned"])}
    how = Settings(PRECISIONS[settings["precision"]], SGD(momentum=0.9), seed=settings["seed"])
    return engines.built(student, methods, model, how, comm)


def checked_piece(method: Callable[..., Any]) -> Callable[..., slice]:
    """Say now that this is no slice, and not when the engine finds that it cannot cut with it."""

    def piece(self: Any, flat: Flat) -> slice:
        mine = method(self, flat)
        if not isinstance(mine, slice):
            raise TypeError(f"piece returned {type(mine).__name__} where a slice is wanted")
        return mine

    return piece


def checked_owned(method: Callable[..., Any]) -> Callable[..., Any]:
    """Likewise of two arrays."""

    def owned(self: Any, flat: Flat) -> Any:
        pair = method(self, flat)
        if not isinstance(pair, tuple) or [type(array) for array in pair] != [np.ndarray] * 2:
            raise TypeError(f"owned returned {type(pair).__name__} where two arrays are wanted: parameters, gradient")
        return pair

    return owned


train = engines.on_engine(make, engines.train)


def pieces(comm: Comm, exercise: ModuleType, _: Any, **made: Any) -> list[list[int]]:
    """Of each Flat, from where to where the shard is."""
    engine = make(comm, exercise, **made)
    return [list(engine.piece(flat).indices(flat.padded)) for flat in engine.flats]


def owned(comm: Comm, exercise: ModuleType, _: Any, **made: Any) -> list[list[Array]]:
    """For each Flat and array: where 1 was added when 1 was added to what `owned` returns."""
    engine, found = make(comm, exercise, **made), list[list[Array]]()
    for flat in engine.flats:
        before = flat.param.copy(), flat.grad.copy()
        for array in engine.owned(flat):
            array += 1
        found.append([np.flatnonzero(flat.param != before[0]), np.flatnonzero(flat.grad != before[1])])
    return found


def reduce(comm: Comm, exercise: ModuleType, mine: Sequence[Array], **made: Any) -> list[Any]:
    """Each Flat's grad after it was reduced."""
    engine, found = make(comm, exercise, **made), list[Any]()
    engine.direction = "backward"
    for flat, gradient in zip(engine.flats, mine, strict=True):
        note[0](f"at {flat.name}")
        held = flat.grad
        held[:] = gradient
        engine.reduce(flat)
        found.append(returned(flat.grad))
    note[0]("")
    return found


def norm(comm: Comm, exercise: ModuleType, mine: Sequence[Array], **made: Any) -> Any:
    """What squared_norm says of these gradients."""
    engine = make(comm, exercise, **made)
    for flat, gradient in zip(engine.flats, mine, strict=True):
        flat.grad[:] = gradient
    with np.errstate(over="ignore", invalid="ignore"):
        return number(engine.squared_norm())


def after_update(comm: Comm, exercise: ModuleType, mine: Sequence[Array], **made: Any) -> dict[str, list[Any]]:
    """flat.param of every Flat after the shards were updated and put together again: the array that was there, and what
    has its name then."""
    engine = make(comm, exercise, **made)
    held = [flat.param for flat in engine.flats]
    for param, values in zip(held, mine, strict=True):
        param[:] = values
    engine.after_update()
    return {"held": [returned(param) for param in held], "named": [returned(flat.param) for flat in engine.flats]}


def either(comm: Comm, exercise: ModuleType, mine: Any, function: str, **arguments: Any) -> Any:
    """One of those that send."""
    if function == "train_step":
        [found] = step(comm, exercise, mine, **arguments)
        said = [part for pair in found["returned"] for part in pair if isinstance(part, float)]
        return [np.array(said), found["param"], found["master"], [array for _, array in found["handed"]]]
    if function == "squared_norm":
        return np.array([norm(comm, exercise, mine, **arguments)], float)
    return {"reduce": reduce, "after_update": after_update}[function](comm, exercise, mine, **arguments)


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def ends(mine: Any) -> Any:
    """Where a shard starts and stops; the type of what is no slice."""
    return [mine.start, mine.stop] if isinstance(mine, slice) else type(mine).__name__


call_shard_slice = answers("shard_slice", ends)
call_reduce_shard = calls("reduce_shard")
call_update_shard = calls("update_shard")


def call_norm_of(comm: Comm, exercise: ModuleType, mine: Sequence[Array]) -> Any:
    return number(exercise.norm_of(comm, list(mine)))
