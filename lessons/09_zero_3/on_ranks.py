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
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.optim import SGD, AdamW
from minidist.nn.precision import PRECISIONS
from minidist.zero3 import ZeRO3

Array = np.ndarray
METHODS = ("allocate", "owned", "gather", "reduce", "after_update")
PLACES = ("before_forward", "after_forward", "before_backward", "after_backward")


def make(
    comm: Comm,
    exercise: ModuleType,
    asked: Sequence[str],
    model: dict[str, Any],
    settings: dict[str, Any],
    then: Callable[[str, Unit], None] = lambda place, unit: None,
) -> Engine:
    """A student's engine in which all methods but those that are asked for are the chapter's. `then` is called after
    each of the four places."""
    units = gpt(GPTConfig(**model))
    student = exercise.ZeRO3
    methods = {name: getattr(student if name in asked else ZeRO3, name) for name in (*METHODS, *PLACES)}
    methods |= {name: followed(name, methods[name], then) for name in (*PLACES, "after_update")}
    state = {"kept": [], "last_reader": {read: unit for unit in units for read in unit.reads}}  # of the chapter's
    graded = type("ZeRO3", (student,), {**state, **methods})
    made: Engine = graded(units, to_settings(**settings), comm)
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


def followed(name: str, method: Callable[..., Any], then: Callable[[str, Unit], None]) -> Callable[..., None]:
    """A method that says where the rank is, in case it fails or hangs there; afterwards, of a unit's, `then`."""

    def call(self: Any, *units: Unit) -> None:
        note(" of ".join([f"in {name}", *(unit.name for unit in units)]))
        method(self, *units)
        note("")
        for unit in units:
            then(name, unit)

    return call


def shards(engine: Any, name: str) -> list[Any]:
    """An array of every unit, in order: flat.param or flat.grad."""
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


def gather(comm: Comm, exercise: ModuleType, mine: Array, **made: Any) -> dict[str, Any]:
    """Every unit gathered once, and once more, after this rank's own numbers were added to its shards; and the shards
    afterwards."""
    engine: Any = make(comm, exercise, ("gather",), **made)
    found: dict[str, Any] = {"once": [], "again": [], "kept": []}
    for unit, flat in engine.flats.items():
        flat.param += np.resize(mine, flat.param.size)
        for which in ("once", "again"):
            note(f"in gather of {unit.name}")
            found[which].append(returned(engine.gather(flat, "all-gather forward")))
        found["kept"].append(returned(flat.gathered))
    return {**found, "param": shards(engine, "param")}


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
    """Bytes of arrays that are held: for good, and beyond that after an evaluation and after every place of a step.

    There are two steps, and the smaller number counts: the launcher may look at this rank at any moment, which takes
    memory too.
    """
    moments: list[list[tuple[str, str, int]]] = [[]]
    tracemalloc.start()
    witness = np.empty(12_347, np.uint8)
    try:
        engine: Any = make(
            comm,
            exercise,
            (*METHODS, *PLACES),
            then=lambda place, unit: moments[-1].append((place, unit.name, arrays_held(witness))),
            **made,
        )
        for_good = arrays_held(witness)
        engine.evaluate(*x_and_y(batches[0, 0]))
        evaluated = arrays_held(witness)
        for [tokens] in batches:
            moments.append([])
            engine.backward(engine.forward(*x_and_y(tokens)))
            engine.step()
        first, second = moments[1:]
        fewest = [(place, unit, min(a, b)) for (place, unit, a), (_, _, b) in zip(first, second, strict=True)]
        return {"for good": for_good, "evaluated": evaluated, "moments": fewest}
    finally:
        tracemalloc.stop()


def x_and_y(tokens: Array) -> tuple[Array, Array]:
    """Sequences and their targets, from (sequences, context + 1)."""
    return tokens[:, :-1], tokens[:, 1:]
