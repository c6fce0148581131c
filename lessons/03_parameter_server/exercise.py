"""Exercise 03: a parameter server. Workers push gradients and pull weights; k servers hold the weights.

Fill in the six functions; `pytest lessons/03_parameter_server` says how many points they earn. There are W workers, the
ranks 0 to W-1, and k servers, the ranks from W on. The S weights have the *keys* 0 to S-1; server i, on rank W+i, holds
range i of them. A worker's *clock* says how many iterations it has behind it. In each it does this:

    pull    a header (PULL, clock) to every server; from each come its clocks, and the weights of its range
    push    a header (PUSH, clock) to every server, and behind it the gradient of its range

and after the last one it tells every server STOP. (Every header has a clock; who answers a pull needs it.) What a
server does with these, `take`, `fresh` and `serve` say.
"""

import time
from dataclasses import dataclass, field

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray
PUSH, PULL, STOP = 0, 1, 2


@dataclass
class Shard:
    """Given: what one server has."""

    weights: Array  # (n,) of its range of keys
    clocks: Array  # (W,) int64: how many updates of each worker are in these weights
    staleness: float  # of how many iterations of the others a read may know nothing: 0 in bsp, math.inf in async
    together: bool  # bsp: one update with the sum of all workers' gradients; else each push is an update at once
    lr: float
    kept: dict[int, Array] = field(default_factory=dict)  # bsp: gradients that have come, by worker

    def update(self, gradient: Array) -> None:
        self.weights -= self.lr * gradient


def tell(comm: Comm, dest: int, kind: int, clock: int) -> None:
    """Given: send a header."""
    with comm.phase("headers"):
        comm.send(np.array([kind, clock], np.int64), dest)


def next_header(comm: Comm) -> tuple[int, int, int]:
    """Given: wait for a header from whoever speaks first: (who, kind, clock). comm.probe() is the rank from which a
    message is waiting, or None."""
    while (source := comm.probe()) is None:
        time.sleep(0.0002)
    header = np.empty(2, np.int64)
    comm.recv(header, source)
    return source, int(header[0]), int(header[1])


def answer(comm: Comm, shard: Shard, worker: int) -> None:
    """Given: send a worker the clocks and the weights. comm.post sends a copy in the background: it never waits."""
    with comm.phase("headers"):
        comm.post(shard.clocks, worker)
    comm.post(shard.weights, worker)


# ---- what is asked for -----------------------------------------------------------------------------------------------


def ranges(size: int, k: int) -> list[slice]:
    """Cut the keys 0 to size-1 into k consecutive ranges, in order; no two differ by more than one key in length."""
    raise NotImplementedError


def push(comm: Comm, gradient: Array, clock: int, workers: int) -> None:
    """A worker tells every server (PUSH, clock), and then sends it the gradient of its range.

    gradient (S,)   of all keys; all ranks from `workers` on are servers
    """
    raise NotImplementedError


def pull(comm: Comm, weights: Array, clock: int, workers: int) -> Array:
    """A worker tells every server (PULL, clock), and only then waits for the answers: from each server its clocks, (W,)
    int64, and then its weights, which go into `weights` in their places.

    weights (S,)    of all keys; it is changed. Return (W,) int64: for each worker, how many of its updates are in
                    *every* one of these weights.
    """
    raise NotImplementedError


def fresh(clocks: Array, worker: int, clock: int, staleness: float) -> bool:
    """The gate: may `worker`, which has `clock` iterations behind it, see weights in which there are clocks[w] updates
    of each worker w?

    Yes, as soon as all of its own `clock` updates are in them, and of every worker at least the first
    clock - staleness.
    """
    raise NotImplementedError


def take(shard: Shard, worker: int, gradient: Array) -> None:
    """A server has got a worker's gradient (n,) of its range, a new array that may be kept.

    If not shard.together: call shard.update with it, and count it in shard.clocks.
    If shard.together: put it into shard.kept, until there is one of every worker. Then call shard.update once, with
    their sum, empty shard.kept, and count one update of everyone. The sum is the same to the last bit in whatever order
    they have come.
    """
    raise NotImplementedError


def serve(comm: Comm, shard: Shard) -> None:
    """A server's life: take one message after another, from whoever speaks first, until every worker has said STOP.

    What is pushed is received into a new array, and taken. A pull is answered as soon as it is fresh: it may be so at
    once, or has to be held back until others have pushed. Never wait for one worker while others may want something.
    (A gradient follows its header at once: to wait for that is all right.) At the end call comm.flush(), which waits
    until all that was posted has been received.
    """
    raise NotImplementedError
