"""What the graded parts let the ranks do with a student's functions. No points are given here."""

from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np
from given import PULL, PUSH, STOP, Shard

from minidist.classroom.grading.chapter import functions
from minidist.classroom.grading.ranks import answers, note, returned
from minidist.mpi.comm import Comm, CommError

Array = np.ndarray
# The lesson's own functions take the place of what a function calls, and of what the workers of `serve` call.
given = functions("answers", ("ranges", "push", "pull", "fresh", "take", "serve"))
STANDS_ON = {
    **dict.fromkeys(("ranges", "fresh", "take"), ()),
    **dict.fromkeys(("push", "pull"), ("ranges",)),
    "serve": ("ranges", "push", "pull", "fresh", "take"),
}


def keys_of(size: int, k: int, i: int) -> slice:
    """Range i of k, as the lesson's own `ranges` cuts them."""
    return given["ranges"](size, k)[i]  # type: ignore[no-any-return]


def header(comm: Comm, source: int) -> list[int]:
    """The next header that a rank has sent here."""
    got = np.empty(2, np.int64)
    comm.recv(got, source)
    return [int(number) for number in got]


def tell(comm: Comm, dest: int, kind: int, clock: int) -> None:
    comm.send(np.array([kind, clock], np.int64), dest)


# ---- on one rank -----------------------------------------------------------------------------------------------------


def call_ranges(comm: Comm, exercise: ModuleType, sizes: list[list[int]], function: str) -> list[Any]:
    """For each (size, k) the ranges as [lo, hi]; the type of what is none."""
    found: list[Any] = []
    for size, k in sizes:
        made = getattr(exercise, function)(size, k)
        if not isinstance(made, list | tuple):
            found.append(type(made).__name__)
            continue
        found.append([
            [int(each.start or 0), int(each.stop)]
            if isinstance(each, slice) and each.stop is not None and each.step in (None, 1)
            else type(each).__name__
            for each in made
        ])  # fmt: skip
    return found


call_gate = answers()


def call_take(
    comm: Comm, exercise: ModuleType, gradients: Array, order: list[int], together: bool, function: str = "take"
) -> list[Any]:
    """Pushes of workers in some order, the next row of each worker's gradients every time; gradients (W, T, n). After
    each push: weights, clocks, how often they were updated."""
    workers, _, n = gradients.shape
    shard = Counting(np.zeros(n, gradients.dtype), np.zeros(workers, np.int64), 0.0, together, 1.0)
    pushed, found = [0] * workers, list[Any]()
    for worker in order:
        getattr(exercise, function)(shard, worker, gradients[worker, pushed[worker]].copy())
        pushed[worker] += 1
        found.append([returned(shard.weights), returned(shard.clocks), shard.updates])
    return found


def call_take_last(comm: Comm, exercise: ModuleType, gradients: Array, order: list[int]) -> Array | str:
    """The weights of a shard.together after one push of each worker, whatever became of all pushes but the last."""
    shard = Shard(np.zeros(gradients.shape[1], gradients.dtype), np.zeros(len(order), np.int64), 0.0, True, 1.0)
    for worker in order[:-1]:
        with suppress(Exception):
            exercise.take(shard, worker, gradients[worker].copy())
    exercise.take(shard, order[-1], gradients[order[-1]].copy())
    return returned(shard.weights)  # type: ignore[no-any-return]


class Counting(Shard):
    """It knows how often it was updated."""

    updates = 0

    def update(self, gradient: Array) -> None:
        self.updates += 1
        super().update(gradient)


# ---- push and pull: the servers are ours -----------------------------------------------------------------------------


def call_push(
    comm: Comm, exercise: ModuleType, gradient: Array, workers: int, clock: int, whatever: bool = False
) -> Any:
    """On a server: from each worker in turn a header, and a range's values; `whatever`: or others, which are lost."""
    if comm.rank < workers:
        exercise.push(comm, gradient.copy(), clock, workers)
        return None
    keys = keys_of(gradient.size, comm.size - workers, comm.rank - workers)
    found = []
    for worker in range(workers):
        note[0](f"receiving what rank {worker} pushed")
        said, values = header(comm, worker), np.empty_like(gradient[keys])
        with suppress(*[CommError] * whatever):
            comm.recv(values, worker)
        found.append([said, values])
    note[0]("")
    return found


def call_pull(
    comm: Comm, exercise: ModuleType, mine: list[Array], workers: int, clock: int, patient: bool = False
) -> Any:
    """On a worker: the weights, and what pull returned. mine: a server's weights of all keys (it sends those of
    its range), and its clocks; patient: no server answers before all have been asked."""
    weights, clocks = mine
    if comm.rank < workers:
        weights = np.full_like(weights, -1)
        found = exercise.pull(comm, weights, clock, workers)
        return {"weights": weights, "clocks": returned(found)}
    keys, token = keys_of(weights.size, comm.size - workers, comm.rank - workers), np.empty(1)
    for worker in range(workers):
        header(comm, worker)
        if patient and comm.rank > workers:
            comm.send(token, workers)
            comm.recv(token, workers)
        elif patient:
            for other in range(workers + 1, comm.size):
                comm.recv(token, other)
            for other in range(workers + 1, comm.size):
                comm.send(token, other)
        comm.send(clocks, worker)
        comm.send(weights[keys].copy(), worker)
    return None


# ---- serve: the workers are ours -------------------------------------------------------------------------------------


def call_serve(
    comm: Comm, exercise: ModuleType, mine: Array, workers: int, staleness: float, together: bool, at_last: bool
) -> Array | None:
    """A training in which worker w's gradient at clock c is mine[c], whatever the weights are. On a server: its weights
    in the end, from 0, with the learning rate 1. at_last: no worker says STOP before all have pushed all."""
    iterations, size = mine.shape
    k, i = comm.size - workers, comm.rank - workers
    if i >= 0:
        keys = keys_of(size, k, i)
        shard = Shard(np.zeros(size)[keys].copy(), np.zeros(workers, np.int64), staleness, together, 1.0)
        exercise.serve(comm, shard)
        return returned(shard.weights)
    weights = np.empty(size)
    for clock in range(iterations):
        given["pull"](comm, weights, clock, workers)
        given["push"](comm, mine[clock], clock, workers)
    if at_last:
        meet(comm, workers)
    stop(comm, workers)
    return None


def meet(comm: Comm, workers: int) -> None:
    """Return when every worker has come here."""
    token = np.empty(1)
    if comm.rank > 0:
        comm.send(token, 0)
        comm.recv(token, 0)
        return
    for other in range(1, workers):
        comm.recv(token, other)
    for other in range(1, workers):
        comm.send(token, other)


def stop(comm: Comm, workers: int) -> None:
    """A worker's last word, which may find nobody there any more."""
    for server in range(workers, comm.size):
        comm.post(np.array([STOP, 0], np.int64), server)


def call_gated(comm: Comm, exercise: ModuleType, ones: Array, ahead: int, staleness: float) -> Any:
    """One server, on rank 3, and three workers. Rank 1 does nothing before the others have asked for more than they may
    see. On a worker: of each pull, the clocks that came with the weights."""
    if comm.rank == 3:
        exercise.serve(comm, Shard(np.zeros(ones.size), np.zeros(3, np.int64), staleness, False, 1.0))
        return None
    if comm.rank == 1:
        for other in (0, 2):
            comm.recv(np.empty(1), other)
    reads = []
    for clock in range(ahead):
        tell(comm, 3, PULL, clock)
        reads.append(receive(comm, ones.size))
        tell(comm, 3, PUSH, clock)
        comm.send(ones, 3)
    if comm.rank != 1:
        tell(comm, 3, PULL, ahead)
        comm.send(np.empty(1), 1)
        reads.append(receive(comm, ones.size))
    meet(comm, 3)
    stop(comm, 3)
    return reads


def receive(comm: Comm, size: int) -> list[int]:
    """From the server, the last rank: clocks and weights; the clocks."""
    server = comm.size - 1
    clocks, weights = np.empty(server, np.int64), np.empty(size)
    comm.recv(clocks, server)
    comm.recv(weights, server)
    return [int(clock) for clock in clocks]


def call_unhurried(comm: Comm, exercise: ModuleType, size: int) -> None:
    """One server, on rank 2, and two workers. Rank 0 asks first, and receives its weights when rank 1 has its own."""
    token = np.empty(1)
    if comm.rank == 2:
        exercise.serve(comm, Shard(np.zeros(size), np.zeros(2, np.int64), 0.0, False, 1.0))
    elif comm.rank == 0:
        tell(comm, 2, PULL, 0)
        comm.send(token, 1)
        comm.recv(token, 1)
        receive(comm, size)
    else:
        comm.recv(token, 0)
        tell(comm, 2, PULL, 0)
        receive(comm, size)
        comm.send(token, 0)
    if comm.rank < 2:
        stop(comm, 2)


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def call_push_and_pull(comm: Comm, exercise: ModuleType, x: Array) -> Any:
    """The last rank is the server: it sends everyone a hundred times what it has got."""
    server = comm.size - 1
    if comm.rank < server:
        weights = np.full_like(x, -1)
        exercise.push_and_pull(comm, x, weights, server)
        return weights
    got = np.empty_like(x)
    for worker in range(server):
        comm.recv(got, worker)
        comm.send(100 * got, worker)
    return None


call_next_weight = answers("next_weight")


def call_fooled(comm: Comm, exercise: ModuleType, nothing: None) -> list[int] | str:
    value = exercise.fooled()
    whole = isinstance(value, list | tuple | np.ndarray) and all(isinstance(n, int | np.integer) for n in value)
    return [int(n) for n in value] if whole else type(value).__name__


def call_hear(comm: Comm, exercise: ModuleType, x: Array, kinds: list[int], clocks: list[int]) -> Any:
    """The last rank is the server, which hears one message of each worker: [worker, kind, clock, gradient or None]; of
    what is no such tuple the type."""
    server = comm.size - 1
    if comm.rank < server:
        tell(comm, server, kinds[comm.rank], clocks[comm.rank])
        if kinds[comm.rank] == PUSH:
            comm.send(x, server)
        return None
    found, weights = list[Any](), np.zeros_like(x)
    for _ in range(server):
        heard = exercise.hear(comm, weights)
        if not isinstance(heard, tuple | list) or len(heard) != 4:
            found.append(type(heard).__name__)
            continue
        worker, kind, clock, gradient = heard
        found.append([int(worker), int(kind), int(clock), None if gradient is None else returned(gradient)])
    return [found, returned(weights)]


def call_answer_fresh(
    comm: Comm, exercise: ModuleType, weights: Array, clocks: list[int], staleness: float, held: list[list[int]]
) -> Any:
    """The last rank is the server, with pulls that are held. On it what is held afterwards; on a worker what has come:
    clocks and weights, or None. Clocks of -1 say that no answer follows."""
    server = comm.size - 1
    if comm.rank == server:
        shard = Shard(weights.copy(), np.array(clocks), staleness, False, 1.0)
        left = exercise.answer_fresh(comm, shard, [(worker, clock) for worker, clock in held])
        for worker in range(server):
            comm.post(np.full(server, -1), worker)
        comm.flush()
        pairs = isinstance(left, list | tuple) and all(isinstance(pull, tuple | list) for pull in left)
        return [[int(number) for number in pull] for pull in left] if pairs else type(left).__name__
    answers, came = list[Any](), np.empty(server, np.int64)
    comm.recv(came, server)
    while came[0] != -1:
        got = np.empty_like(weights)
        comm.recv(got, server)
        answers.append([returned(came), got])
        came = np.empty_like(came)
        comm.recv(came, server)
    return answers
