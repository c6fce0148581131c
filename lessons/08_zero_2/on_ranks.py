"""What the graded parts let the ranks do with a student's train_step and ZeRO2. No points are given here.

A part asks for one or two of the methods; the chapter's take the place of the others, and of lesson 07's.
"""

import tracemalloc
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from given import Unit

from minidist.classroom.grading import engines
from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import answers, arrays_held, note, peak_memory, returned, told
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat

Array = np.ndarray
METHODS = ("allocate", "owned", "collect", "reduce")
given = functions("minidist.zero2", METHODS, of="ZeRO2")
EARLIER = ("piece", "summed", "squared_norm", "squares", "after_update")  # the student's may be unfinished
earlier = functions("minidist.zero1", EARLIER, of="ZeRO1")
Place = tuple[str, str]  # (collect or reduce, the Flat's name)


def make(
    comm: Comm,
    exercise: ModuleType,
    model: dict[str, Any],
    settings: dict[str, Any],
    then: Callable[[Place], None] = lambda place: None,
) -> Any:
    """A student's engine, with the chapter's methods in place of those that are not asked for. `then` is called after
    each that the engine calls in a backward."""
    student = exercise.ZeRO2
    methods = {name: given.get(name) or getattr(student, name) for name in METHODS}
    methods |= {name: followed(name, methods[name], then) for name in ("collect", "reduce")}
    methods |= {"accumulated": 1, **earlier}
    return engines.built(student, methods, model, engines.settings_of(**settings), comm)


def followed(name: str, method: Callable[..., Any], then: Callable[[Place], None]) -> Callable[..., Any]:
    """A method that says where the rank is, in case it fails or hangs there; afterwards, `then`."""

    def call(self: Any, flat: Flat) -> None:
        note[0](f"at {flat.name} in the backward")
        method(self, flat)
        note[0]("")
        then((name, flat.name))

    return call


# ---- the notebook's layers -------------------------------------------------------------------------------------------


Mine = tuple[Array, Sequence[tuple[Array, Array]]]  # parameters of all units, and of each micro-batch this rank's rows


def units_of(comm: Comm, params: Array, grads: Array | None = None) -> list[Unit]:
    """A rank's units, from the parameters of each (padded,), and what has added up in its shard of the gradient."""
    made = []
    for number, param in enumerate(params):
        shard = np.split(param, comm.size)[comm.rank]
        grad = np.zeros_like(shard) if grads is None else grads[number].copy()
        made.append(Unit(param.copy(), grad, shard.copy()))
    return made


def train_layers(comm: Comm, exercise: ModuleType, mine: Mine, steps: int, **how: Any) -> dict[str, Any]:
    """The loss of each step, and this rank's parameters and gradients after them."""
    units = units_of(comm, mine[0])
    losses = [exercise.train_step(comm, list(units), list(mine[1]), **how) for _ in range(steps)]
    return {
        "losses": told(losses),
        "params": [returned(u.param) for u in units],
        "grads": [returned(u.grad) for u in units],
    }


def train_layers_measured(comm: Comm, exercise: ModuleType, mine: Mine, **how: Any) -> tuple[int, list[bool]]:
    """The most memory that a step used at a time, besides its arguments; and of each layer, whether this rank's
    parameters are others now."""
    units = units_of(comm, mine[0])
    peak = peak_memory(lambda: exercise.train_step(comm, list(units), list(mine[1]), **how))[1]
    return peak, [not np.array_equal(unit.param, start) for unit, start in zip(units, mine[0], strict=True)]


# ---- one method ------------------------------------------------------------------------------------------------------

train = engines.on_engine(make, engines.train)
allocate = engines.on_engine(make, engines.arrays)
collect = engines.on_engine(make, engines.fill_bucket)
reduce = engines.on_engine(make, engines.reduce_buckets)
reduce_one = engines.on_engine(make, lambda engine, buckets: engines.reduce_bucket(engine, buckets[0]))
hold_for_good = engines.measure_for_good(make)


def owned(comm: Comm, exercise: ModuleType, _: Array, **made: Any) -> list[Any]:
    """Of each Flat the name, what `owned` returned, and flat.param and flat.grad before and after 1 was added to it."""
    engine, found = make(comm, exercise, **made), []
    for flat in engine.flats:
        before, pair = [returned(flat.param), returned(flat.grad)], engine.owned(flat)
        theirs = [returned(array) for array in pair]
        for array in pair:
            array += 1
        found.append((flat.name, theirs, before, [returned(flat.param), returned(flat.grad)]))
    return found


# ---- memory ----------------------------------------------------------------------------------------------------------


def hold(comm: Comm, exercise: ModuleType, batches: Array, **made: Any) -> list[dict[str, Any]]:
    """For each micro-batch of a step the bytes that are held at the end of its forward and of its backward, and after
    collect and reduce of each unit; and whether by then any flat.grad is not zero. There are two steps, and the smaller
    number counts."""
    moments: list[tuple[Place, int]] = []
    steps: list[list[dict[str, Any]]] = []

    def look(place: Place) -> None:
        moments.append((place, arrays_held(witness)))

    tracemalloc.start()
    witness = np.empty(12_347, np.uint8)
    try:
        engine = make(comm, exercise, then=look, **made)
        engine.loss_scale.scale = 1024.0  # at which nothing overflows
        for step in batches:
            steps.append([])
            for number, tokens in enumerate(step):
                engine.micro_batch = number
                moments.clear()
                loss = engine.forward(tokens[:, :-1], tokens[:, 1:])
                forward = arrays_held(witness)
                engine.backward(loss)
                del loss
                steps[-1].append({"forward": forward, "backward": arrays_held(witness), "moments": list(moments)})
                steps[-1][-1]["reduced"] = any(np.any(flat.grad) for flat in engine.flats)
        return [fewest(*of_both) for of_both in zip(*steps, strict=True)]
    finally:
        tracemalloc.stop()


def fewest(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Of two steps' numbers the smaller ones."""
    moments = zip(first["moments"], second["moments"], strict=True)
    ends = {name: min(first[name], second[name]) for name in ("forward", "backward", "reduced")}
    return {**ends, "moments": [(place, min(a, b)) for (place, a), (_, b) in moments]}


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------

Back = tuple[Array, list[Array], Array, Array]  # params; x and what each unit gave; the slope by the last; grads before


def toy_reduce(comm: Comm, exercise: ModuleType, gradient: Array) -> dict[str, Any]:
    """The shard that every rank has; whether it keeps the bucket in memory."""
    shard = exercise.reduce_unit(comm, gradient)
    whole = getattr(shard, "base", None)
    return {"returned": returned(shard), "is a view": isinstance(whole, np.ndarray) and whole.size > shard.size}


def toy_backward(comm: Comm, exercise: ModuleType, mine: Back) -> list[Any]:
    """The units' shards of the gradient."""
    params, h, dh, grads = mine
    units = units_of(comm, params, grads)
    exercise.backward(comm, list(units), list(h), dh)
    return [returned(unit.grad) for unit in units]


def toy_backward_measured(comm: Comm, exercise: ModuleType, mine: Back) -> int:
    """The most memory that a backward used at a time, besides its arguments."""
    params, h, dh, grads = mine
    units = units_of(comm, params, grads)
    return peak_memory(lambda: exercise.backward(comm, list(units), list(h), dh))[1]


def toy_accumulate(comm: Comm, exercise: ModuleType, mine: Mine, batch: int) -> dict[str, Any]:
    """What was returned, and the units' shards of the gradient."""
    units = units_of(comm, mine[0])
    loss = exercise.accumulate(comm, list(units), list(mine[1]), batch)
    return {"loss": told(loss), "grads": [returned(unit.grad) for unit in units]}


toy_room = answers("room")
