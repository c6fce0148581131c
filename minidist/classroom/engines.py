"""What graded parts let an engine do on a rank, in lessons 05 and 07 to 09."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from minidist.classroom.ranks import arrays_held, returned

Array = np.ndarray


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
        flat.bind(None, slopes=written.astype(engine.precision.computed))
        engine.collect(flat)
        found.append(returned(flat.bucket))
    return found


def reduce_bucket(engine: Any, bucket: Array) -> Any:
    """flat.grad of the first Flat after its bucket was reduced."""
    flat, engine.direction = engine.flats[0], "backward"
    flat.bucket = bucket.astype(engine.precision.stored)
    engine.reduce(flat)
    return returned(flat.grad)


def measure_for_good(make: Callable[[], Any]) -> int:
    """The bytes of arrays that an engine holds before its first step."""
    make()  # so that imports on first use happen now
    tracemalloc.start()
    witness = np.empty(12_347, np.uint8)
    try:
        engine = make()
        return arrays_held(witness) if engine.flats else 0
    finally:
        tracemalloc.stop()
