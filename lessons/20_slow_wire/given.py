"""What lesson 20's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from minidist import ring
from minidist.exchange.one_process import run_ranks
from minidist.mpi.comm import Comm
from minidist.zeropp import quantized, restored

Array = np.ndarray
ASKED = ("quantize", "add_quantized", "send_with_feedback", "add_largest", "top_k_step", "outer_step")


def sent(comm: Comm) -> int:
    """Bytes that this rank has sent."""
    return sum(n for (kind, *_, unit), n in comm.ledger.ever().items() if (kind, unit) == ("payload", "bytes"))


# ---- the largest, and a ring -----------------------------------------------------------------------------------------


def bytes_of_largest(n: int, k: int) -> int:
    """What each of n ranks sends, so that all get everyone's k largest float32 elements and their places."""

    def on_rank(comm: Comm) -> int:
        ring.all_gather(comm, np.zeros(k, np.int32), n * k)
        ring.all_gather(comm, np.zeros(k, np.float32), n * k)
        return sent(comm)

    return max(run_ranks(on_rank, n))


def bytes_of_a_ring(n: int, size: int) -> int:
    """What each of n ranks sends to sum float32 arrays."""

    def on_rank(comm: Comm) -> int:
        ring.all_reduce(comm, np.zeros(size, np.float32))
        return sent(comm)

    return max(run_ranks(on_rank, n))


# ---- one model for four ranks ----------------------------------------------------------------------------------------


class Problem:
    """Rows of numbers with targets, shared out over ranks: a linear model, whose best loss is known."""

    def __init__(self, ranks: int = 4, size: int = 64, rows: int = 32, seed: int = 20) -> None:
        draw = np.random.default_rng(seed)
        self.ranks, self.size = ranks, size
        self.x = draw.standard_normal((ranks, rows, size)) * np.logspace(0, -1, size)
        self.y = self.x @ draw.standard_normal(size) + 0.1 * draw.standard_normal((ranks, rows))

    def gradient(self, rank: int, w: Array) -> Array:
        """Of this rank's part of the mean loss: the ranks' gradients add up to that of the whole."""
        x, y = self.x[rank], self.y[rank]
        return x.T @ (x @ w - y) / y.size / self.ranks

    def loss(self, w: Array) -> float:
        return float(np.mean((self.x @ w - self.y) ** 2) / 2)


def train(
    problem: Problem, step: Callable[[Comm, Array, Array], Array], steps: int, lr: float
) -> tuple[list[float], int]:
    """Losses, and the bytes that rank 0 sent: step(comm, gradient, error) returns what all ranks move by. error is the
    rank's own, zeros at first."""

    def on_rank(comm: Comm) -> tuple[list[float], int]:
        w, error, losses = np.zeros(problem.size), np.zeros(problem.size), list[float]()
        for _ in range(steps):
            w = w - lr * step(comm, problem.gradient(comm.rank, w), error)
            losses.append(problem.loss(w))
        return losses, sent(comm)

    return run_ranks(on_rank, problem.ranks)[0]


def train_top_k(problem: Problem, step: Callable[..., Array], k: int, steps: int, lr: float) -> tuple[list[float], int]:
    """The same with a step of DGC: step(comm, gradient, velocity, error, k, momentum)."""
    velocities: dict[int, Array] = {}

    def one(comm: Comm, gradient: Array, error: Array) -> Array:
        velocity = velocities.setdefault(comm.rank, np.zeros(problem.size))
        return step(comm, gradient, velocity, error, k, 0.9)

    return train(problem, one, steps, lr)


def train_alone(problem: Problem, outer_step: Callable[..., Any], every: int, steps: int) -> tuple[list[float], int]:
    """Losses after each outer step, and the bytes that rank 0 sent. In between each rank follows its own rows."""

    def on_rank(comm: Comm) -> tuple[list[float], int]:
        w, start, velocity, m, v = np.zeros((5, problem.size))
        losses = list[float]()
        for number in range(1, steps + 1):
            gradient = problem.gradient(comm.rank, w) * problem.ranks
            m[...], v[...] = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient**2
            w -= 0.03 * m / (np.sqrt(v) + 1e-3)
            if number % every == 0:
                outer_step(comm, w, [m, v], start, velocity, 0.7, 0.6)
                losses.append(problem.loss(w))
        return losses, sent(comm)

    return run_ranks(on_rank, problem.ranks)[0]


# ---- what is not sent ------------------------------------------------------------------------------------------------


def keep(x: Array, k: int) -> Array:
    """The k largest |x|; zeros elsewhere."""
    kept = np.zeros_like(x)
    chosen = np.argsort(-abs(x), kind="stable")[:k]
    kept[chosen] = x[chosen]
    return kept


class Feedback:
    """A step that sums what a compressor leaves of each rank's gradient, and keeps accounts."""

    def __init__(self, compress: Callable[[Array], Array], feedback: bool) -> None:
        self.compress, self.feedback = compress, feedback
        self.wanted, self.moved, self.left = 0.0, 0.0, dict[int, Array]()

    def __call__(self, comm: Comm, gradient: Array, error: Array) -> Array:
        x = gradient + error if self.feedback else gradient
        s = self.compress(x)
        if self.feedback:
            error[...] = x - s
        self.left[comm.rank] = error
        self.wanted += gradient
        self.moved += s
        return ring.all_reduce(comm, s)

    def not_accounted_for(self) -> float:
        """All gradients, less what was sent and what is left: the norm of it, relative to theirs."""
        rest = self.wanted - self.moved - sum(self.left.values())
        return float(np.linalg.norm(rest) / np.linalg.norm(self.wanted))


# ---- masks -----------------------------------------------------------------------------------------------------------


def with_masks(comm: Comm, gradient: Array, velocity: Array, error: Array, k: int, momentum: float) -> Array:
    """A step of DGC."""
    total = without_a_mask(comm, gradient, velocity, error, k, momentum)
    velocity[error == 0] = 0
    return total


def without_a_mask(comm: Comm, gradient: Array, velocity: Array, error: Array, k: int, momentum: float) -> Array:
    """A step of DGC that leaves the momentum of what it has sent."""
    velocity[...] = momentum * velocity + gradient
    error += velocity
    part = keep(error, k)
    error[part != 0] = 0
    return ring.all_reduce(comm, part)


# ---- sums of what is rounded -----------------------------------------------------------------------------------------


def whole_numbers(x: Array, block: int) -> tuple[Array, Array]:
    """Whole numbers from -7 to 7 of x (rows, c), and scales."""
    return quantized(x, block, 7)


def error_of_sums(n: int, in_a_ring: bool, block: int = 64, size: int = 256, draws: int = 20) -> float:
    """The error of a sum of n ranks' arrays in int4, relative to one rank's array: root mean squares. In a ring a
    partial sum is rounded before each of its n-1 steps; else each rank's array is rounded once."""
    draw, squares = np.random.default_rng(n), []
    for _ in range(draws):
        x = draw.standard_normal((n, size))

        def rounded(row: Array) -> Array:
            return restored(*quantized(row[None], block, 7), block, row.dtype)[0]

        if in_a_ring:
            total = x[0]
            for row in x[1:]:
                total = rounded(total) + row
        else:
            total = np.sum([rounded(row) for row in x], axis=0)
        squares.append(np.mean((total - x.sum(axis=0)) ** 2))
    return float(np.sqrt(np.mean(squares)))


# ---- steps alone -----------------------------------------------------------------------------------------------------


def sweep(*options: str) -> tuple[dict[int, float], dict[int, int]]:
    """What `local_sgd --sweep` found: by H the validation loss, and the bytes that a rank sent."""
    command = [sys.executable, "-m", "minidist.local_sgd", "--sweep", "--no-prove", "--json", "-", *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout[ran.stdout.index("{") :])
    losses, nbytes = ({int(every): value for every, value in found[name].items()} for name in ("loss", "sent"))
    return losses, nbytes
