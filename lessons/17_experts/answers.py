"""Lesson 17's own functions, which the notebook uses where a gap is open: look here after you have tried."""

from collections.abc import Sequence

import numpy as np
from given import padded

from minidist import ring
from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- the gaps --------------------------------------------------------------------------------------------------------


def queue_numbers(expert: Array, experts: int) -> Array:
    number, waiting = np.zeros(len(expert), int), [0] * experts
    for choice, chosen in enumerate(expert):
        number[choice] = waiting[chosen]
        waiting[chosen] += 1
    return number


def copy_back(drows: Array, token: Array, n: int) -> Array:
    dx = np.zeros((n, drows.shape[1]))
    np.add.at(dx, token, drows)
    return dx


def balance_slope(prob: Array, share: Array, alpha: float) -> Array:
    dprob = np.broadcast_to(alpha * len(share) / len(prob) * share, prob.shape)
    return prob * (dprob - (dprob * prob).sum(axis=1, keepdims=True))


def to_experts(comm: Comm, rows: Array) -> Array:
    experts, capacity, h = rows.shape
    arrived = ring.all_to_all(comm, rows.reshape(comm.size, experts // comm.size, capacity, h))
    return arrived.transpose(1, 0, 2, 3).reshape(experts // comm.size, -1, h)


def to_tokens(comm: Comm, rows: Array) -> Array:
    here, _, h = rows.shape
    by_rank = np.ascontiguousarray(rows.reshape(here, comm.size, -1, h).transpose(1, 0, 2, 3))
    return ring.all_to_all(comm, by_rank).reshape(comm.size * here, -1, h)


def average(gradient: Array, is_expert: bool, world: Comm, copies: Comm) -> None:
    ring.all_reduce(copies if is_expert else world, gradient, gradient)
    gradient /= world.size


# ---- the exercise ----------------------------------------------------------------------------------------------------


def arrange(expert: Array, experts: int, capacity: int) -> tuple[Array, Array]:
    queue = queue_numbers(expert, experts)
    place = np.where(queue < capacity, expert * capacity + queue, -1)
    slot = np.full(experts * capacity, -1)
    kept = np.flatnonzero(place >= 0)
    slot[place[kept]] = kept
    return slot, place


def copy_rows(x: Array, slot: Array) -> Array:
    return padded(x)[np.where(slot < 0, -1, slot % len(x))]


def copy_rows_backward(drows: Array, slot: Array, n: int) -> Array:
    dx, filled = np.zeros((n, drows.shape[1]), drows.dtype), slot >= 0
    np.add.at(dx, slot[filled] % n, drows[filled])
    return dx


def add_rows(rows: Array, gates: Array, place: Array) -> Array:
    k, n = gates.shape
    return (gates[:, :, None] * padded(rows)[place].reshape(k, n, -1)).sum(axis=0)


def add_rows_backward(dy: Array, rows: Array, gates: Array, place: Array) -> tuple[Array, Array]:
    k, n = gates.shape
    dgates = (dy * padded(rows)[place].reshape(k, n, -1)).sum(axis=2)
    drows, kept = np.zeros_like(rows), place >= 0
    drows[place[kept]] = (gates[:, :, None] * dy).reshape(k * n, -1)[kept]
    return drows, dgates


def count_shares(comm: Comm, expert: Array, experts: int) -> Array:
    counts = ring.all_reduce(comm, np.bincount(expert, minlength=experts).astype(float))
    return counts / counts.sum()


def balance_loss(prob: Array, share: Array, alpha: float) -> float:
    return float(alpha * len(share) * (share @ prob.mean(axis=0)))


def balance_backward(prob: Array, share: Array, alpha: float) -> Array:
    return balance_slope(prob, share, alpha)


def dispatch(comm: Comm, rows: Array, counts: Array) -> tuple[Array, Array]:
    held = [ring.chunk(len(counts), comm.size, rank) for rank in range(comm.size)]
    here = held[comm.rank]
    coming = np.empty((comm.size, here.stop - here.start), counts.dtype)
    ring.all_to_all_v(comm, [counts[of] for of in held], list(coming))
    by_rank = exchange_rows(comm, rows, [counts[of].sum() for of in held], coming.sum(axis=1))
    return by_rank[by_expert(coming)], coming


def combine(comm: Comm, rows: Array, coming: Array, counts: Array) -> Array:
    by_rank = np.empty_like(rows)
    by_rank[by_expert(coming)] = rows
    held = [ring.chunk(len(counts), comm.size, rank) for rank in range(comm.size)]
    return exchange_rows(comm, by_rank, coming.sum(axis=1), [counts[of].sum() for of in held])


def exchange_rows(comm: Comm, rows: Array, going: Sequence[int] | Array, coming: Sequence[int] | Array) -> Array:
    """Rows for each rank, one rank after another -> rows from each rank."""
    arrived = np.empty((sum(coming), rows.shape[1]), rows.dtype)
    ring.all_to_all_v(comm, np.split(rows, np.cumsum(going)[:-1]), np.split(arrived, np.cumsum(coming)[:-1]))
    return arrived


def by_expert(coming: Array) -> Array:
    """The order by expert of rows that arrived rank by rank."""
    expert = np.repeat(np.tile(np.arange(coming.shape[1]), len(coming)), coming.reshape(-1))
    return np.argsort(expert, kind="stable")


def sum_gradients(dense: Sequence[Array], experts: Sequence[Array], world: Comm, copies: Comm) -> None:
    for gradients, ranks in ((dense, world), (experts, copies)):
        for gradient in gradients:
            ring.all_reduce(ranks, gradient, gradient)
            gradient /= world.size
