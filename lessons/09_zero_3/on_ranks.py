"""What the graded parts let the ranks do with a student's train_step and ZeRO3. No points are given here.

A part asks for one or two of the methods; the chapter's take the place of the others.
"""

import tracemalloc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading import engines
from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import arrays_held, calls, note, peak_memory, returned, told
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat

Array = np.ndarray
METHODS = ("allocate", "owned", "parameters_of", "forget", "collect", "reduce", "after_update")
given = functions("minidist.zero3", METHODS, of="ZeRO3")
PLACES = ("parameters_of", "forget", "collect", "reduce")  # on the way through the units
Place = tuple[str, str, str]  # ("forward" or "backward", one of these methods, the Flat's name)
# After which a rank holds the most and the least of a unit.
LOOKED_AT = {("forward", "parameters_of"), ("forward", "forget"), ("backward", "collect"), ("backward", "reduce")}


def make(
    comm: Comm,
    exercise: ModuleType,
    model: dict[str, Any],
    settings: dict[str, Any],
    then: Callable[[Place], None] = lambda place: None,
    computes: bool = True,
) -> Any:
    """A student's engine, with the chapter's methods in place of those that are not asked for. `then` is called after
    each that the engine calls on the way through the units. computes: whether a model computes with what methods
    return."""
    student = exercise.ZeRO3
    methods = {name: given.get(name) or getattr(student, name) for name in METHODS}
    methods |= {name: followed(name, methods[name], then, computes) for name in PLACES}
    methods["after_update"] = noted(methods["after_update"])
    methods |= {"accumulated": 1, "kept": []}  # kept: the chapter's forget asks
    return engines.built(student, methods, model, engines.settings_of(**settings), comm)


def followed(
    name: str, method: Callable[..., Any], then: Callable[[Place], None], computes: bool
) -> Callable[..., Any]:
    """A method that says where the rank is, in case it fails or hangs there; afterwards, `then`. The model computes
    with flat.gathered if that is whole and what was returned is not: one part alone asks for what is returned."""

    def call(self: Any, flat: Flat) -> Any:
        note[0](f"at {flat.name} in the {self.direction}")
        value = method(self, flat)
        if computes:
            value = flat.gathered if name == "parameters_of" and not is_array(value, flat.padded) else value
            check_made(name, flat, value)
        note[0]("")
        then((self.direction, name, flat.name))
        return value

    return call


def is_array(value: Any, size: int) -> bool:
    return isinstance(value, np.ndarray) and value.shape == (size,)


def check_made(name: str, flat: Flat, value: Any) -> None:
    """Say now that a method has left something of the wrong size, and not when a later one stumbles over it."""
    what, made = {
        "parameters_of": ("returned", value),
        "collect": ("left in flat.bucket", flat.bucket),
    }.get(name, ("", np.empty(flat.padded)))
    if not is_array(made, flat.padded):
        found = f"an array {made.shape}" if isinstance(made, np.ndarray) else type(made).__name__
        padding = f", {flat.padded} with its padding" * (flat.padded > flat.size)
        raise TypeError(
            f"{name} {what} {found} where an array ({flat.padded},) is wanted: {flat.name} has {flat.size} elements"
            + padding
        )


def noted(after_update: Callable[..., Any]) -> Callable[..., None]:
    """The method, saying where the rank is."""

    def call(self: Any) -> None:
        note[0]("after the update")
        after_update(self)
        note[0]("")

    return call


def shards(engine: Any, name: str) -> list[Any]:
    """An array of every Flat, in order: flat.param or flat.grad."""
    return [returned(getattr(flat, name, None)) for flat in engine.flats]


# ---- train_step ------------------------------------------------------------------------------------------------------


def train_layers(
    comm: Comm, exercise: ModuleType, mine: tuple[Array, Array, Array], steps: int, **how: Any
) -> dict[str, Any]:
    """The loss of each step, and this rank's shards after them."""
    shards, x, y = [shard.copy() for shard in mine[0]], *mine[1:]
    losses = [exercise.train_step(comm, list(shards), x, y, **how) for _ in range(steps)]
    return {"losses": told(losses), "shards": shards}


def train_layers_measured(
    comm: Comm, exercise: ModuleType, mine: tuple[Array, Array, Array], batch: int, rate: float
) -> int:
    """The most memory that a step used at a time, besides its arguments."""
    shards, x, y = mine

    def step(shards: Array) -> None:
        exercise.train_step(comm, list(shards), x, y, batch, rate)

    return peak_memory(step, shards)[1]


# ---- one method ------------------------------------------------------------------------------------------------------

allocate = engines.on_engine(make, engines.arrays)
collect = engines.on_engine(make, engines.fill_bucket)
reduce = engines.on_engine(make, engines.reduce_buckets)
reduce_one = engines.on_engine(make, lambda engine, buckets: engines.reduce_bucket(engine, buckets[0]))
hold_for_good = engines.measure_for_good(make)


def owned(comm: Comm, exercise: ModuleType, _: Array, **made: Any) -> list[Any]:
    """For each Flat and array: its name, and the shard before and after 1 was added to what `owned` returns."""
    engine, found = make(comm, exercise, **made), []
    for flat in engine.flats:
        for which, array in zip(("param", "grad"), engine.owned(flat), strict=True):
            before = returned(getattr(flat, which))
            array += 1
            found.append((which, flat.name, before, returned(getattr(flat, which))))
    return found


def gather(comm: Comm, exercise: ModuleType, mine: Array, times: int, **made: Any) -> dict[str, Any]:
    """All parameters, asked for `times` times in the forward and in the backward, after this rank's own numbers were
    added to its shards; what flat.gathered holds; and the shards afterwards."""
    engine, found = make(comm, exercise, computes=False, **made), {}
    for flat in engine.flats:
        flat.param += np.resize(mine, flat.param.size).astype(flat.param.dtype)
    for direction in ("forward", "backward"):
        engine.direction = direction
        for _ in range(times):
            found[direction] = [returned(engine.parameters_of(flat)) for flat in engine.flats]
        found[f"kept in the {direction}"] = [returned(flat.gathered) for flat in engine.flats]
        for flat in engine.flats:
            flat.gathered = None
    return {**found, "param": shards(engine, "param")}


def gather_new(comm: Comm, exercise: ModuleType, mine: Array, **made: Any) -> dict[str, Any]:
    """The parameters that all units compute with; and once more, after flat.gathered was forgotten and every rank has
    added its numbers to its shards. If what is returned is not whole, flat.gathered counts, as in a step."""
    engine, found = make(comm, exercise, computes=False, **made), {}
    for which in ("before", "after"):
        whole = [(engine.parameters_of(flat), flat) for flat in engine.flats]
        found[which] = [returned(value if is_array(value, flat.padded) else flat.gathered) for value, flat in whole]
        for flat in engine.flats:
            flat.gathered = None
            flat.param += np.resize(mine, flat.param.size).astype(flat.param.dtype)
    return found


def gather_one(comm: Comm, exercise: ModuleType, _: Any, unit: int, direction: str, **made: Any) -> Any:
    """All parameters of one unit."""
    engine = make(comm, exercise, computes=False, **made)
    engine.direction = direction
    return returned(engine.parameters_of(engine.flats[unit]))


def either(comm: Comm, exercise: ModuleType, buckets: Array, function: str, **made: Any) -> Any:
    """One of the two that send: reduce of one Flat, or parameters_of for all of them."""
    if function == "reduce":
        return reduce_one(comm, exercise, buckets, **made)
    engine = make(comm, exercise, computes=False, **made)
    return [[returned(engine.parameters_of(flat)), returned(flat.gathered)] for flat in engine.flats]


# ---- training --------------------------------------------------------------------------------------------------------


def train(comm: Comm, exercise: ModuleType, batches: Array, **made: Any) -> Any:
    """Steps of training, batches (steps, micro-batches, sequences, context + 1): losses, and shards of parameters."""
    engine, losses, parameters = make(comm, exercise, **made), [], []
    for step in batches:
        for tokens in step:
            loss = engine.forward(*x_and_y(tokens))
            losses.append(loss.value)
            engine.backward(loss)
            engine.step()
        parameters.append(shards(engine, "param"))
    return {"losses": losses, "parameters": parameters}


def hold(comm: Comm, exercise: ModuleType, batches: Array, back: bool = True, **made: Any) -> dict[str, Any]:
    """Bytes that are held: for good, after an evaluation, at the end of a forward, after a step, and in
    between after the places that are looked at; and whether after a backward any flat.grad is not zero. There are two
    steps, and the smaller number counts. Without `back` there are forwards alone."""
    moments: list[list[tuple[Place, int]]] = [[]]
    ends: list[list[int]] = []
    reduced = False

    def look(place: Place) -> None:
        if place[:2] in LOOKED_AT:
            moments[-1].append((place, arrays_held(witness)))

    tracemalloc.start()
    witness = np.empty(12_347, np.uint8)
    try:
        engine = make(comm, exercise, then=look, **made)
        engine.loss_scale.scale = 1024.0  # at which no step overflows: one that does updates nothing
        for_good = arrays_held(witness)
        engine.evaluate(*x_and_y(batches[0, 0]))
        evaluated = arrays_held(witness)
        for [tokens] in batches:
            moments.append([])
            loss = engine.forward(*x_and_y(tokens))
            forward = arrays_held(witness)
            if back:
                engine.backward(loss)
            del loss
            backward = arrays_held(witness)
            if back:
                reduced = any(np.any(flat.grad) for flat in engine.flats)
                engine.step()
            ends.append([forward, backward, arrays_held(witness)])
        first, second = moments[1:]
        fewest = [(place, min(a, b)) for (place, a), (_, b) in zip(first, second, strict=True)]
        forward, backward, after = (min(of_step) for of_step in zip(*ends, strict=True))
        held = {"for good": for_good, "evaluated": evaluated, "forward": forward, "backward": backward, "after": after}
        return {**held, "moments": fewest, "reduced": reduced}
    finally:
        tracemalloc.stop()


def walk(comm: Comm, exercise: ModuleType, _: Array, **made: Any) -> int:
    """The way forward through the units of a large model, without computing. How many arrays of all parameters of a
    unit were there."""
    engine, whole = make(comm, exercise, **made), 0
    engine.direction = "forward"
    for flat in engine.flats:
        whole += is_array(engine.parameters_of(flat), flat.padded)
        engine.forget(flat)
    return whole


def x_and_y(tokens: Array) -> tuple[Array, Array]:
    """Sequences and their targets, from (sequences, context + 1)."""
    return tokens[:, :-1], tokens[:, 1:]


# ---- the notebook's gaps: a layer h -> tanh(h W) ---------------------------------------------------------------------


def toy_cut(comm: Comm, exercise: ModuleType, w: Array) -> dict[str, Any]:
    """The shard of a matrix that every rank has; whether it keeps the whole of it in memory."""
    shard = exercise.cut_shard(w, comm.size, comm.rank)
    whole = getattr(shard, "base", None)  # of the matrix, or of what was made of it when zeros were added
    larger = isinstance(whole, np.ndarray) and whole.size > shard.size
    return {"returned": returned(shard), "is a view": larger or np.may_share_memory(shard, w)}


toy_gather = calls("gather")
toy_forward = calls("forward_layer")
toy_backward = calls("backward_layer")
