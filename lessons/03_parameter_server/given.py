"""Lesson 03's own functions, which the notebook uses where a gap is open, and its model answer: try before you look.

The chapter, minidist/parameter_server.py, does the same in the order of simulated time, with an optimizer that has
state, and with copies that take over when a server stops.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray
PUSH, PULL, STOP = 0, 1, 2


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def push_and_pull(comm: Comm, gradient: Array, weights: Array, server: int) -> None:
    comm.send(gradient, server)
    comm.recv(weights, server)


def cut(size: int, k: int) -> list[slice]:
    return [slice(size * i // k, size * (i + 1) // k) for i in range(k)]


def may_read(clocks: Sequence[int], worker: int, clock: int, staleness: float) -> bool:
    return min(clocks) >= clock - staleness and clocks[worker] >= clock


def fooled() -> list[int]:
    return [3, 1, 2, 3]


def next_weight(w: Sequence[float], q: float, tau: int) -> float:
    return w[-1] - q * w[max(len(w) - 1 - tau, 0)]


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


# ---- the notebook's gaps that stand on these -------------------------------------------------------------------------


def hear(comm: Comm, weights: Array) -> tuple[int, int, int, Array | None]:
    worker, kind, clock = next_header(comm)
    gradient = None
    if kind == PUSH:
        gradient = np.empty_like(weights)
        comm.recv(gradient, worker)
    return worker, kind, clock, gradient


def count_push(shard: Shard, worker: int, gradient: Array) -> None:
    shard.update(gradient)
    shard.clocks[worker] += 1


def answer_fresh(comm: Comm, shard: Shard, held: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    waiting = []
    for worker, clock in held:
        if may_read(shard.clocks, worker, clock, shard.staleness):
            answer(comm, shard, worker)
        else:
            waiting.append((worker, clock))
    return waiting


# ---- the exercise ----------------------------------------------------------------------------------------------------


def ranges(size: int, k: int) -> list[slice]:
    return [slice(size * i // k, size * (i + 1) // k) for i in range(k)]


def push(comm: Comm, gradient: Array, clock: int, workers: int) -> None:
    for server, keys in enumerate(ranges(gradient.size, comm.size - workers), start=workers):
        tell(comm, server, PUSH, clock)
        comm.send(gradient[keys], server)


def pull(comm: Comm, weights: Array, clock: int, workers: int) -> Array:
    for server in range(workers, comm.size):
        tell(comm, server, PULL, clock)
    oldest = np.full(workers, np.iinfo(np.int64).max)
    clocks = np.empty_like(oldest)
    for server, keys in enumerate(ranges(weights.size, comm.size - workers), start=workers):
        comm.recv(clocks, server)
        comm.recv(weights[keys], server)
        np.minimum(oldest, clocks, out=oldest)
    return oldest


def fresh(clocks: Array, worker: int, clock: int, staleness: float) -> bool:
    return bool(clocks.min() >= clock - staleness and clocks[worker] >= clock)


def take(shard: Shard, worker: int, gradient: Array) -> None:
    if not shard.together:
        shard.update(gradient)
        shard.clocks[worker] += 1
        return
    shard.kept[worker] = gradient
    if len(shard.kept) == len(shard.clocks):
        shard.update(np.sum([shard.kept[w] for w in sorted(shard.kept)], axis=0))
        shard.clocks += 1
        shard.kept.clear()


def serve(comm: Comm, shard: Shard) -> None:
    held: list[tuple[int, int]] = []  # pulls that are not answered: (worker, clock)
    working = len(shard.clocks)
    while working:
        source, kind, clock = next_header(comm)
        if kind == PUSH:
            gradient = np.empty_like(shard.weights)
            comm.recv(gradient, source)
            take(shard, source, gradient)
        elif kind == PULL:
            held.append((source, clock))
        else:
            working -= 1
        ready = [pull for pull in held if fresh(shard.clocks, *pull, shard.staleness)]
        for worker, _ in ready:
            answer(comm, shard, worker)
        held = [pull for pull in held if pull not in ready]
    comm.flush()


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
    import exercise

    model = {name: globals()[name] for name in FUNCTIONS}
    mixed = {name: getattr(exercise, name) if name in own else model[name] for name in FUNCTIONS}
    vars(exercise).update(mixed)  # because right functions may call wrong ones
    return {"exercise.py": mixed, "the model answer": model}
