"""What the graded parts let the ranks do with a student's ZeRO3. No points are given here.

A part asks for some of the methods; the chapter's take the place of the others, so that no part needs a later one.
"""

import tracemalloc
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.ranks import arrays_held, note, returned
from minidist.engine import Engine, Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import SGD, AdamW
from minidist.nn.precision import PRECISIONS
from minidist.zero3 import ZeRO3

Array = np.ndarray
METHODS = ("allocate", "owned", "parameters_of", "forget", "collect", "reduce", "after_update")
PLACES = ("parameters_of", "forget", "collect", "reduce")  # on the way through the units
Place = tuple[str, str, str]  # ("forward" or "backward", one of these methods, the Flat's name)
# After which a rank holds the most and the least of a unit: to look at what it holds takes long.
LOOKED_AT = {("forward", "parameters_of"), ("forward", "forget"), ("backward", "collect"), ("backward", "reduce")}


def make(
    comm: Comm,
    exercise: ModuleType,
    asked: Sequence[str],
    model: dict[str, Any],
    settings: dict[str, Any],
    then: Callable[[Place], None] = lambda place: None,
) -> Engine:
    """A student's engine in which all methods but those that are asked for are the chapter's. `then` is called after
    each that the engine calls on the way through the units."""
    student = exercise.ZeRO3
    methods = {name: getattr(student if name in asked else ZeRO3, name) for name in METHODS}
    methods |= {name: followed(name, methods[name], then) for name in PLACES}
    methods["after_update"] = noted(methods["after_update"])
    given = {"accumulated": 1, "kept": []}  # the latter to the chapter's forget
    graded = type("ZeRO3", (student,), {**given, **methods})
    made: Engine = graded(gpt(GPTConfig(**model)), to_settings(**settings), comm)
    return made


def to_settings(precision: str, optimizer: str, accumulate: int, seed: int) -> Settings:
    return Settings(
        PRECISIONS[precision],
        AdamW() if optimizer == "adamw" else SGD(momentum=0.9),
        learning_rate=lambda update: 0.1 / (update + 1),
        clip=0.5,
        accumulate=accumulate,
        seed=seed,
    )


def followed(name: str, method: Callable[..., Any], then: Callable[[Place], None]) -> Callable[..., Any]:
    """A method that says where the rank is, in case it fails or hangs there; afterwards, `then`."""

    def call(self: Any, flat: Flat) -> Any:
        note(f"at {flat.name} in the {self.direction}")
        value = method(self, flat)
        if name == "parameters_of":
            check_whole(flat, value)
        note("")
        then((self.direction, name, flat.name))
        return value

    return call


def check_whole(flat: Flat, value: Any) -> None:
    """Say now that these are not all parameters, and not when the model finds that it cannot compute with them."""
    if not isinstance(value, np.ndarray) or value.shape != (flat.padded,):
        found = f"array {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"parameters_of returned {found} where an array ({flat.padded},) is wanted: all parameters")


def noted(after_update: Callable[..., Any]) -> Callable[..., None]:
    """The method, saying where the rank is."""

    def call(self: Any) -> None:
        note("after the update")
        after_update(self)
        note("")

    return call


def shards(engine: Any, name: str) -> list[Any]:
    """An array of every Flat, in order: flat.param or flat.grad."""
    return [returned(getattr(flat, name, None)) for flat in engine.flats]


def allocate(comm: Comm, exercise: ModuleType, _: Array, **made: Any) -> dict[str, Any]:
    """The shards after construction; and each of them before and after 1 was added to what `owned` returns."""
    engine: Any = make(comm, exercise, ("allocate", "owned"), **made)
    found: dict[str, Any] = {"param": shards(engine, "param"), "grad": shards(engine, "grad"), "owned": []}
    for flat in engine.flats:
        for which, array in zip(("param", "grad"), engine.owned(flat), strict=True):
            before = returned(getattr(flat, which))
            array += 1
            found["owned"].append((which, flat.name, before, returned(getattr(flat, which))))
    return found


def parameters_of(comm: Comm, exercise: ModuleType, mine: Array, **made: Any) -> dict[str, Any]:
    """All parameters twice in the forward, then in the backward, after this rank's own numbers were added to its
    shards; and the shards afterwards."""
    engine: Any = make(comm, exercise, ("parameters_of",), **made)
    found: dict[str, Any] = {"once": [], "again": [], "kept": [], "backward": []}
    for flat in engine.flats:
        flat.param += np.resize(mine, flat.param.size)
    for flat in engine.flats:
        for which in ("once", "again"):
            found[which].append(returned(engine.parameters_of(flat)))
        found["kept"].append(returned(flat.gathered))
    for flat in engine.flats:
        flat.gathered = None
    engine.direction = "backward"
    for flat in reversed(engine.flats):
        found["backward"].insert(0, returned(engine.parameters_of(flat)))
    return {**found, "param": shards(engine, "param")}


def forget(comm: Comm, exercise: ModuleType, _: Array, **made: Any) -> dict[str, Any]:
    """Where parameters are still gathered when they were forgotten: (direction, Flat); and the shards afterwards."""
    engine: Any = make(comm, exercise, ("forget",), **made)
    left = []
    for direction in ("forward", "backward"):
        engine.direction = direction
        for flat in engine.flats:
            engine.parameters_of(flat)
            engine.forget(flat)
            if flat.gathered is not None:
                left.append((direction, flat.name))
            flat.gathered = None  # so that all ranks gather it again
    return {"left": left, "param": shards(engine, "param")}


def train(comm: Comm, exercise: ModuleType, batches: Array, asked: list[str], evaluate: bool, **made: Any) -> Any:
    """Steps of training, batches (steps, micro-batches, sequences, context + 1): losses, gradients, parameters.

    With `evaluate`, what is evaluated, on the first batch before the first step and after each.
    """
    engine: Any = make(comm, exercise, asked, **made)
    losses, gradients, parameters, evaluated = [], [], [], []
    for step in batches:
        if evaluate:
            evaluated.append(engine.evaluate(*x_and_y(batches[0, 0])))
        for tokens in step:
            loss = engine.forward(*x_and_y(tokens))
            losses.append(loss.value)
            engine.backward(loss)
            gradients = shards(engine, "grad") if engine.last_micro_batch and not parameters else gradients
            engine.step()
        parameters.append(shards(engine, "param"))
    return {"losses": losses, "gradients": gradients, "parameters": parameters, "evaluated": evaluated}


def hold(comm: Comm, exercise: ModuleType, batches: Array, **made: Any) -> dict[str, Any]:
    """Bytes of arrays that are held: for good, after an evaluation, and in a step after the places that are looked at.

    There are two steps, and the smaller number counts: the launcher may look at this rank at any moment, which takes
    memory too.
    """
    moments: list[list[tuple[Place, int]]] = [[]]

    def look(place: Place) -> None:
        if place[:2] in LOOKED_AT:
            moments[-1].append((place, arrays_held(witness)))

    tracemalloc.start()
    witness = np.empty(12_347, np.uint8)
    try:
        engine: Any = make(comm, exercise, METHODS, then=look, **made)
        for_good = arrays_held(witness)
        engine.evaluate(*x_and_y(batches[0, 0]))
        evaluated = arrays_held(witness)
        for [tokens] in batches:
            moments.append([])
            engine.backward(engine.forward(*x_and_y(tokens)))
            engine.step()
        first, second = moments[1:]
        fewest = [(place, min(a, b)) for (place, a), (_, b) in zip(first, second, strict=True)]
        return {"for good": for_good, "evaluated": evaluated, "moments": fewest}
    finally:
        tracemalloc.stop()


def x_and_y(tokens: Array) -> tuple[Array, Array]:
    """Sequences and their targets, from (sequences, context + 1)."""
    return tokens[:, :-1], tokens[:, 1:]
