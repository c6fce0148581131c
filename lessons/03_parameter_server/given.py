"""What lesson 03's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray
PUSH, PULL, STOP = 0, 1, 2


# ---- as in exercise.py -----------------------------------------------------------------------------------------------


@dataclass
class Shard:
    weights: Array
    clocks: Array
    staleness: float
    together: bool
    lr: float
    kept: dict[int, Array] = field(default_factory=dict)

    def update(self, gradient: Array) -> None:
        self.weights -= self.lr * gradient


def tell(comm: Comm, dest: int, kind: int, clock: int) -> None:
    with comm.phase("headers"):
        comm.send(np.array([kind, clock], np.int64), dest)


def next_header(comm: Comm) -> tuple[int, int, int]:
    while (source := comm.probe()) is None:
        time.sleep(0.0002)
    header = np.empty(2, np.int64)
    comm.recv(header, source)
    return source, int(header[0]), int(header[1])


def answer(comm: Comm, shard: Shard, worker: int) -> None:
    with comm.phase("headers"):
        comm.post(shard.clocks, worker)
    comm.post(shard.weights, worker)


# ---- what the notebook counts with -----------------------------------------------------------------------------------

FUNCTIONS = ("ranges", "push", "pull", "fresh", "take", "serve")


def grows(next_weight: Callable[..., float], q: float, tau: int) -> bool:
    """Whether a training of 3,000 steps gets worse and worse."""
    w = [1.0]
    for _ in range(3000):
        w.append(next_weight(w, q, tau))
        if abs(w[-1]) > 1e6:
            return True
    return max(map(abs, w[-300:])) > max(map(abs, w[1500:1800]))


def find_largest_q(next_weight: Callable[..., float], tau: int) -> float:
    """The largest q with which training does not grow: halve an interval again and again."""
    low, high = 0.0, 3.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (low, middle) if grows(next_weight, middle, tau) else (middle, high)
    return low


def bytes_into(sent_to: Sequence[Mapping[int, Mapping[int, int]]], k: int, rank: int) -> int:
    """The bytes that all ranks have sent to this one, with k servers."""
    return sum(of_rank[k].get(rank, 0) for of_rank in sent_to)


def bytes_out_of(sent_to: Sequence[Mapping[int, Mapping[int, int]]], k: int, rank: int) -> int:
    return sum(sent_to[rank][k].values())


def gradient_of(weights: Array, worker: int, workers: int) -> Array:
    """The gradient of a linear model's squared error at this worker's share of 60 points: every `workers`-th one."""
    points = np.random.default_rng(0).standard_normal((60, 6))
    values = points @ np.arange(1.0, 7.0)
    mine = slice(worker, None, workers)
    return points[mine].T @ (points[mine] @ weights - values[mine]) / len(points)


def mix_functions(own: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The functions of exercise.py, with the model answer's in place of wrong ones; and those of the model answer."""
    import answers
    import exercise

    model = {name: getattr(answers, name) for name in FUNCTIONS}
    mixed = {name: getattr(exercise, name) if name in own else model[name] for name in FUNCTIONS}
    vars(exercise).update(mixed)  # because right functions may call wrong ones
    return {"exercise.py": mixed, "the model answer": model}
