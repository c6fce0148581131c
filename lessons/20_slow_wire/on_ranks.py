"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minidist import ring
from minidist.classroom.grading.ranks import returned
from minidist.mpi.comm import Comm

Array = np.ndarray
ON_RANKS = ("add_quantized", "add_largest")  # these take comm first


def told(value: Any) -> Any:
    """What a function returned: several things as a list, a number as it is, of others than arrays the type."""
    if isinstance(value, tuple | list):
        return [told(each) for each in value]
    is_number = isinstance(value, float | np.floating) and not isinstance(value, bool)
    return float(value) if is_number else returned(value)


def call(comm: Comm, exercise: ModuleType, mine: list[Any], function: str) -> dict[str, Any]:
    """What the function returned, and what became of the arrays that it got."""
    replace(exercise, function)
    handed = [value.copy() if isinstance(value, np.ndarray) else value for value in mine]
    value = getattr(exercise, function)(*([comm] if function in ON_RANKS else []), *handed)
    return {"returned": told(value), "handed": [each for each in handed if isinstance(each, np.ndarray)]}


# ---- the lesson's own, in place of what a function calls -------------------------------------------------------------


def replace(exercise: ModuleType, function: str) -> None:
    """Other functions of the exercise that this one may call are the lesson's own."""
    own = {"add_quantized": {"quantize": rounded, "packed": in_pairs, "unpacked": one_by_one}}
    vars(exercise).update(own.get(function, {"add_largest": largest} if function == "top_k_step" else {}))


def rounded(x: Array, block: int, most: int) -> tuple[Array, Array]:
    blocks = np.pad(x, ((0, 0), (0, -x.shape[1] % block))).reshape(len(x), -1, block)
    scales = (abs(blocks).max(axis=2) / most).astype(np.float32)
    numbers = np.rint(blocks / np.where(scales > 0, scales, 1)[..., None]).astype(np.int8)
    return numbers.reshape(len(x), -1)[:, : x.shape[1]], scales


def in_pairs(numbers: Array) -> Array:
    nibbles = np.pad(numbers + 8, ((0, 0), (0, numbers.shape[1] % 2))).astype(np.uint8)
    return nibbles[:, ::2] << 4 | nibbles[:, 1::2]


def one_by_one(pairs: Array, c: int) -> Array:
    return np.stack([pairs >> 4, pairs & 15], axis=2).reshape(len(pairs), -1)[:, :c].astype(np.int8) - 8


def largest(comm: Comm, x: Array, k: int) -> tuple[Array, Array]:
    sent = np.zeros_like(x)
    mine = np.argsort(-abs(x), kind="stable")[:k]
    sent[mine] = x[mine]
    return ring.all_reduce(comm, sent), sent


# ---- error feedback, and training ------------------------------------------------------------------------------------


def feed(comm: Comm, exercise: ModuleType, mine: list[Any], k: int) -> dict[str, Any]:
    """All vectors in turn, through a compressor that keeps the k largest: what it got, what was sent, what remains."""
    vectors, error = list(mine[0]), mine[1].copy()
    got, sent = list[Any](), list[Any]()

    def compress(x: Array) -> Array:
        got.append(returned(x))
        kept = np.zeros_like(x)
        chosen = np.argsort(-abs(x), kind="stable")[:k]
        kept[chosen] = x[chosen]
        return kept

    handed = [x.copy() for x in vectors]
    for x in handed:
        sent.append(returned(exercise.send_with_feedback(compress, x, error)))
    return {"got": got, "sent": sent, "error": error, "handed": handed}


def loss_of(parameters: Array, target: Array, weight: Array) -> float:
    return float(np.sum(weight * (parameters - target) ** 2) / 2)


def train_top_k(comm: Comm, exercise: ModuleType, mine: list[Array], k: int, momentum: float, lr: float) -> Any:
    """Steps on the ranks' own quadratic losses; after each this rank's loss, and what was sent."""
    replace(exercise, "top_k_step")
    target, weight, steps = mine
    parameters, velocity, error = (np.zeros_like(target) for _ in range(3))
    found: dict[str, Any] = {"totals": [], "losses": [], "changed": False}
    for _ in range(int(steps[0])):
        gradient = weight * (parameters - target) / comm.size
        handed = gradient.copy()
        total = exercise.top_k_step(comm, handed, velocity, error, k, momentum)
        found["totals"].append(returned(total))
        found["changed"] |= not np.array_equal(handed, gradient)
        if not isinstance(total, np.ndarray) or total.shape != target.shape:
            break
        parameters -= lr * total
        found["losses"].append(loss_of(parameters, target, weight))
    return found


def outer(comm: Comm, exercise: ModuleType, mine: list[Any], lr: float, momentum: float) -> dict[str, Any]:
    """Two outer steps; between them the parameters move by what is this rank's."""
    parameters, moves, start, velocity = (array.copy() for array in mine)
    moments = [np.zeros_like(start), np.zeros_like(start)]
    after = list[list[Array]]()
    for move in moves:
        parameters += move
        exercise.outer_step(comm, parameters, moments, start, velocity, lr, momentum)
        after.append([parameters.copy(), velocity.copy()])
    return {"after": after}


def train_alone(comm: Comm, exercise: ModuleType, mine: list[Array], every: int, rounds: int, lr: float) -> Any:
    """Rounds of `every` steps alone, each with momentum and a second moment; after each this rank's loss."""
    target, weight = mine
    parameters, start, velocity = (np.zeros_like(target) for _ in range(3))
    moments: Sequence[Array] = [np.zeros_like(target), np.zeros_like(target)]
    losses = list[float]()
    for _ in range(rounds):
        for _ in range(every):
            gradient = weight * (parameters - target)
            moments[0][...] = 0.9 * moments[0] + 0.1 * gradient
            moments[1][...] = 0.9 * moments[1] + 0.1 * gradient**2
            parameters -= lr * moments[0] / (np.sqrt(moments[1]) + 1e-3)
        exercise.outer_step(comm, parameters, moments, start, velocity, 1.0, 0.0)
        losses.append(loss_of(parameters, target, weight))
    return {"losses": losses}
