"""What the graded parts let the ranks do with a student's train_step and DataParallel. No points are given here.

A part asks for one of the methods; the lesson's own take the place of the others.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading import engines
from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import answers, returned, told
from minidist.classroom.notebook.watch import Watched
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.optim import SGD
from minidist.nn.precision import PRECISIONS

Array = np.ndarray
METHODS = ("rows", "send_bucket", "reduce", "sum_over_axes")
given = functions("answers", METHODS, of="DataParallel")


def make(
    comm: Comm, exercise: ModuleType, model: dict[str, Any], settings: dict[str, Any], bucket_size: int = 0
) -> Any:
    """A student's engine, with the lesson's methods in place of those that are not asked for."""
    student = exercise.DataParallel
    methods = {name: given.get(name) or getattr(student, name) for name in METHODS}
    how = Settings(PRECISIONS[settings["precision"]], SGD(), seed=settings["seed"], bucket_size=bucket_size)
    return engines.built(student, methods, model, how, comm)


# ---- train_step ------------------------------------------------------------------------------------------------------


def train_layers(
    comm: Comm, exercise: ModuleType, mine: Sequence[Array], steps: int, rate: float, clips: list[float]
) -> list[dict[str, Any]]:
    """For each limit of the norm, from the start: what each step returned, and this rank's flats after them."""
    found = []
    for clip in clips:
        flats, x, y = [flat.copy() for flat in mine[0]], *mine[1:]
        said = [exercise.train_step(comm, list(flats), x, y, rate, clip) for _ in range(steps)]
        found.append({"returned": told(said), "flats": flats})
    return found


def train_layers_watched(comm: Comm, exercise: ModuleType, mine: Sequence[Array], rate: float) -> list[Array]:
    """What a step sends."""
    watched: Any = Watched(comm)
    exercise.train_step(watched, [flat.copy() for flat in mine[0]], *mine[1:], rate, 0.0)
    return [array.reshape(-1) for array in watched.sent]


# ---- one method ------------------------------------------------------------------------------------------------------

train = engines.on_engine(make, engines.train)


def ends(mine: Any) -> Any:
    """Where a share starts and stops; the type of what is no range."""
    return [int(mine.start), int(mine.stop)] if isinstance(mine, range | slice) else type(mine).__name__


def rows(comm: Comm, exercise: ModuleType, _: Any, batches: list[int], **made: Any) -> list[Any]:
    """For each size of a batch this rank's share."""
    engine = make(comm, exercise, **made)
    return [ends(engine.rows(n)) for n in batches]


def with_gradients(comm: Comm, exercise: ModuleType, mine: Sequence[Array], **made: Any) -> Any:
    """An engine whose Flats have these gradients."""
    engine = make(comm, exercise, **made)
    for flat, gradient in zip(engine.flats, mine, strict=True):
        flat.grad[:] = gradient
    return engine


def gradients(engine: Any) -> list[Any]:
    return [returned(flat.grad) for flat in engine.flats]


def send_buckets(
    comm: Comm, exercise: ModuleType, mine: Sequence[Array], buckets: list[list[int]], **made: Any
) -> list[dict[str, list[Any]]]:
    """All gradients, after these Flats waited and were sent, bucket after bucket: what the arrays hold that were
    flat.grad at first, and flat.grad as it is now."""
    engine, found = with_gradients(comm, exercise, mine, **made), []
    held = [flat.grad for flat in engine.flats]
    for bucket in buckets:
        for unit in bucket:
            engine.waiting.append(engine.flats[unit])
        engine.send_bucket()
        found.append({"held": [returned(array) for array in held], "named": gradients(engine)})
    return found


def reduce_all(comm: Comm, exercise: ModuleType, mine: Sequence[Array], **made: Any) -> list[list[int]]:
    """After each reduce, of the last Flat first: which Flats' gradients have changed by then."""
    engine, found = with_gradients(comm, exercise, mine, **made), []
    start = gradients(engine)
    for flat in reversed(engine.flats):
        engine.reduce(flat)
        now = gradients(engine)
        found.append([unit for unit, grad in enumerate(now) if not np.array_equal(grad, start[unit])])
    return found


def send_last(comm: Comm, exercise: ModuleType, mine: Sequence[Array], waiting: list[int], **made: Any) -> Any:
    """All gradients after these Flats waited and sum_over_axes was called; -1 if it sent a bucket of none."""
    engine = with_gradients(comm, exercise, mine, **made)
    engine.waiting.extend(engine.flats[unit] for unit in waiting)
    send, empty = engine.send_bucket, list[bool]()

    def send_bucket() -> None:
        empty.append(not engine.waiting)
        if engine.waiting:
            send()

    engine.send_bucket = send_bucket
    engine.sum_over_axes()
    return -1 if any(empty) else gradients(engine)


def either(comm: Comm, exercise: ModuleType, mine: Any, function: str, **arguments: Any) -> Any:
    """One of the two that send."""
    if function == "train_step":
        return [of_clip["flats"] for of_clip in train_layers(comm, exercise, mine, **arguments)]
    return send_buckets(comm, exercise, mine, **arguments)


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


call_share = answers("share", ends)
call_my_part = answers("my_part")


def call_backward(comm: Comm, exercise: ModuleType, mine: Sequence[Any]) -> Any:
    flats, h, dh = mine
    return told(exercise.backward(comm, list(flats), list(h), dh))


call_clip_factor = answers("clip_factor")
call_sending = answers("sending")
