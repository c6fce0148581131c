"""Lesson 03's own functions, which the notebook uses where a gap is open, and its model answer: try before you look.

The chapter, minidist/parameter_server.py, does the same in the order of simulated time, with an optimizer that has
state, and with copies that take over when a server stops.
"""

from collections.abc import Sequence

import numpy as np
from given import PULL, PUSH, Shard, answer, next_header, tell

from minidist.mpi.comm import Comm

Array = np.ndarray


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
