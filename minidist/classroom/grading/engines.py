"""What graded parts let an engine do on a rank, in lessons 05 and 07 to 09."""

import tracemalloc
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.ranks import arrays_held, returned
from minidist.engine import Engine, Settings
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import SGD, AdamW
from minidist.nn.precision import PRECISIONS

Array = np.ndarray


def settings_of(precision: str, optimizer: str, accumulate: int, seed: int) -> Settings:
    return Settings(
        PRECISIONS[precision],
        AdamW() if optimizer == "adamw" else SGD(momentum=0.9),
        learning_rate=lambda update: 0.1 / (update + 1),
        clip=0.5,
        accumulate=accumulate,
        seed=seed,
    )


def built(
    student: type, methods: Mapping[str, Any], model: Mapping[str, Any], settings: Settings, comm: Comm
) -> Engine:
    """The student's engine, with these methods in place of its own."""
    made: Engine = type(student.__name__, (student,), {**methods})(gpt(GPTConfig(**model)), settings, comm)
    return made


def on_engine(make: Callable[..., Any], use: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """What a part lets the ranks do: make the student's engine, and use it with the rank's input."""

    def run(comm: Comm, exercise: ModuleType, mine: Any, **made: Any) -> Any:
        return use(make(comm, exercise, **made), mine)

    return run


def train(engine: Any, batches: Array) -> list[float]:
    """A rank's part of the loss of each micro-batch; batches (steps, micro-batches, sequences, context + 1)."""
    losses = []
    for tokens in batches.reshape(-1, *batches.shape[2:]):
        loss = engine.forward(tokens[:, :-1], tokens[:, 1:])
        losses.append(loss.value)
        engine.backward(loss)
        engine.step()
    return losses


def fill_bucket(engine: Any, slopes: Array) -> list[Any]:
    """The first Flat's bucket after one unit's backward has written slopes[0], and after another's slopes[1]."""
    found = []
    flat, engine.direction = engine.flats[0], "backward"
    for written in slopes:
        flat.bind(None, raw_grad=written.astype(engine.precision.computed))
        engine.collect(flat)
        found.append(returned(flat.bucket))
    return found


def arrays(engine: Any, _: Any = None) -> dict[str, list[Any]]:
    """flat.param and flat.grad of every Flat, in order."""
    return {name: [returned(getattr(flat, name, None)) for flat in engine.flats] for name in ("param", "grad")}


def reduce_buckets(engine: Any, buckets: Array) -> dict[str, Any]:
    """The first Flat's flat.grad after a bucket was reduced: the first one, the second one, and one after the other."""
    flat, engine.direction = engine.flats[0], "backward"
    found = {}
    for name, which in (("first", [0]), ("second", [1]), ("both", [0, 1])):
        flat.grad = np.zeros(flat.padded // flat.shards, engine.precision.stored)
        for number in which:
            reduce_bucket(engine, buckets[number])
        found[name] = returned(flat.grad)
    return found


def reduce_bucket(engine: Any, bucket: Array) -> Any:
    """flat.grad of the first Flat after its bucket was reduced."""
    flat, engine.direction = engine.flats[0], "backward"
    flat.bucket = bucket.astype(engine.precision.stored)
    engine.reduce(flat)
    return returned(flat.grad)


def measure_for_good(make: Callable[..., Any]) -> Callable[..., int]:
    """What a part lets the ranks do that counts the bytes of arrays which an engine holds before its first step."""

    def run(comm: Comm, exercise: ModuleType, _: Any, **made: Any) -> int:
        make(comm, exercise, **made)  # so that imports on first use happen now
        tracemalloc.start()
        witness = np.empty(12_347, np.uint8)
        try:
            engine = make(comm, exercise, **made)
            return arrays_held(witness) if engine.flats else 0
        finally:
            tracemalloc.stop()

    return run
