"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import calls, returned
from minidist.mpi.comm import Comm

Array = np.ndarray
# The lesson's own functions take the place of what a function may call.
given = functions("answers", ("quantize", "add_largest", "packed", "unpacked"))
STANDS_ON = {
    **dict.fromkeys(("quantize", "send_with_feedback", "add_largest", "outer_step"), ()),
    "add_quantized": ("quantize", "packed", "unpacked"),
    "top_k_step": ("add_largest",),
}


call = calls(on_ranks=("add_quantized", "add_largest"))


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
