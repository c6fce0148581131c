"""A right answer to exercise 03, written from the skeleton."""

import time
from dataclasses import dataclass, field

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray
PUSH, PULL, STOP = 0, 1, 2


@dataclass
class Shard:
    weights: Array  # (n,) of its range of keys
    clocks: Array  # (W,) int64: how many updates of each worker are in these weights
    staleness: float  # of how many iterations of the others a read may know nothing: 0 in bsp, math.inf in async
    together: bool  # bsp: one update with the sum of all workers' gradients; else each push is an update at once
    lr: float
    kept: dict[int, Array] = field(default_factory=dict)  # bsp: gradients that have come, by worker

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


# ---- what is asked for -----------------------------------------------------------------------------------------------


def ranges(size: int, k: int) -> list[slice]:
    short, longer = divmod(size, k)
    found, lo = [], 0
    for i in range(k):
        hi = lo + short + (i >= k - longer)
        found.append(slice(lo, hi))
        lo = hi
    return found


def push(comm: Comm, gradient: Array, clock: int, workers: int) -> None:
    cuts = ranges(gradient.size, comm.size - workers)
    for i, keys in enumerate(cuts):
        tell(comm, workers + i, PUSH, clock)
        comm.send(gradient[keys], workers + i)


def pull(comm: Comm, weights: Array, clock: int, workers: int) -> Array:
    cuts = ranges(weights.size, comm.size - workers)
    for i in range(len(cuts)):
        tell(comm, workers + i, PULL, clock)
    seen = []
    for i, keys in enumerate(cuts):
        clocks = np.empty(workers, np.int64)
        comm.recv(clocks, workers + i)
        comm.recv(weights[keys], workers + i)
        seen.append(clocks)
    return np.min(seen, axis=0)


def fresh(clocks: Array, worker: int, clock: int, staleness: float) -> bool:
    if clocks[worker] < clock:
        return False
    return all(others >= clock - staleness for others in clocks)


def take(shard: Shard, worker: int, gradient: Array) -> None:
    if not shard.together:
        shard.update(gradient)
        shard.clocks[worker] += 1
        return
    shard.kept[worker] = gradient
    if len(shard.kept) < shard.clocks.size:
        return
    total = np.zeros_like(gradient)
    for w in range(shard.clocks.size):
        total += shard.kept[w]
    shard.update(total)
    shard.kept.clear()
    shard.clocks += 1


def serve(comm: Comm, shard: Shard) -> None:
    workers = shard.clocks.size
    asked: dict[int, int] = {}  # worker -> clock of the pull that is held back
    stopped = 0
    while stopped < workers:
        who, kind, clock = next_header(comm)
        if kind == STOP:
            stopped += 1
        elif kind == PULL:
            asked[who] = clock
        else:
            gradient = np.empty_like(shard.weights)
            comm.recv(gradient, who)
            take(shard, who, gradient)
        for worker in sorted(asked):
            if fresh(shard.clocks, worker, asked[worker], shard.staleness):
                answer(comm, shard, worker)
                del asked[worker]
    comm.flush()
