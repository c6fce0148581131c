"""Exercise 03: a parameter server. Workers push gradients and pull weights; k servers hold the weights.

Fill in the six functions; `pytest lessons/03_parameter_server` says how many points they earn. There are W workers, the
ranks 0 to W-1, and k servers, the ranks from W on. The S weights have the *keys* 0 to S-1; server i, on rank W+i, holds
range i of them. A worker's *clock* is the number of iterations that it has completed. In each iteration it does this:

    pull    sends a header (PULL, clock) to every server; each answers with its clocks, and the weights of its range
    push    sends a header (PUSH, clock) to every server, and after it the gradient of the server's range

After its last iteration it sends STOP to every server. (Every header has a clock; the server needs a pull's clock to
answer it.) `take`, `fresh` and `serve` say what a server does with these messages.
"""

import time
from dataclasses import dataclass, field

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray
PUSH, PULL, STOP = 0, 1, 2


@dataclass
class Shard:
    """Given: the state of one server."""

    weights: Array  # (n,): those of its range of keys
    clocks: Array  # (W,) int64: how many updates of each worker are in these weights
    staleness: float  # how many iterations of another worker a read may miss: 0 in bsp, math.inf in async
    together: bool  # bsp: one update with the sum of all workers' gradients; else each push is an update at once
    lr: float
    kept: dict[int, Array] = field(default_factory=dict)  # bsp: gradients that have arrived, by worker

    def update(self, gradient: Array) -> None:
        self.weights -= self.lr * gradient


def tell(comm: Comm, dest: int, kind: int, clock: int) -> None:
    """Given: send a header."""
    with comm.phase("headers"):
        comm.send(np.array([kind, clock], np.int64), dest)


def next_header(comm: Comm) -> tuple[int, int, int]:
    """Given: wait for the next header from any rank, and return (rank, kind, clock). comm.probe() returns a rank whose
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
    """Cut the keys 0 to size-1 into k consecutive ranges, in order. No two differ in length by more than one key."""
    raise NotImplementedError


def push(comm: Comm, gradient: Array, clock: int, workers: int) -> None:
    """A worker sends every server (PUSH, clock), and then the gradient of the server's range.

    gradient (S,)   for all keys; all ranks from `workers` on are servers
    """
    raise NotImplementedError


def pull(comm: Comm, weights: Array, clock: int, workers: int) -> Array:
    """A worker sends every server (PULL, clock), and only then waits for the answers: from each server its clocks, (W,)
    int64, and then its weights, which go into their places in `weights`.

    weights (S,)    for all keys; it is changed. Return (W,) int64: for each worker, how many of its updates are in
                    *every* one of these weights.
    """
    raise NotImplementedError


def fresh(clocks: Array, worker: int, clock: int, staleness: float) -> bool:
    """The gate: may `worker`, which has completed `clock` iterations, read weights that contain clocks[w] updates of
    each worker w?

    Yes, if they contain all of its own `clock` updates, and at least the first clock - staleness updates of every
    worker.
    """
    raise NotImplementedError


def take(shard: Shard, worker: int, gradient: Array) -> None:
    """A server has received a worker's gradient (n,) for its range, in a new array that it may keep.

    If not shard.together: call shard.update with it, and count it in shard.clocks.
    If shard.together: put it into shard.kept, until there is one from every worker. Then call shard.update once, with
    their sum, empty shard.kept, and count one update for every worker. The sum must be the same to the last bit,
    whatever the order in which the gradients arrived.
    """
    raise NotImplementedError


# The server's loop: here is room for the notebook's hear and answer_fresh, with fresh instead of may_read.


def serve(comm: Comm, shard: Shard) -> None:
    """The server's loop: handle one message after another, in the order of arrival, until every worker has sent STOP.

    Receive each pushed gradient into a new array, and call `take`. Answer a pull as soon as it is `fresh`: at once, or
    after others have pushed; until then, hold it back. Never wait for one worker while another may want something.
    (A gradient follows its header at once, so you may wait for that.) All workers do the same number of iterations, so
    no pull waits for a worker that has stopped. At the end call comm.flush(), which waits until everything that was
    posted has been received.
    """
    raise NotImplementedError
