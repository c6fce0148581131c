"""A right answer to exercise 17, written from the skeleton."""

from collections.abc import Sequence

import numpy as np

from minidist import ring
from minidist.mpi.comm import Comm

Array = np.ndarray


def arrange(expert: Array, experts: int, capacity: int) -> tuple[Array, Array]:
    slot = np.full(experts * capacity, -1)
    place = np.full(len(expert), -1)
    for e in range(experts):
        queue = np.flatnonzero(expert == e)
        served = queue[:capacity]
        rows = e * capacity + np.arange(len(served))
        slot[rows] = served
        place[served] = rows
    return slot, place


def copy_rows(x: Array, slot: Array) -> Array:
    rows = np.zeros((len(slot), x.shape[1]))
    for row, choice in enumerate(slot):
        if choice >= 0:
            rows[row] = x[choice % len(x)]
    return rows


def copy_rows_backward(drows: Array, slot: Array, n: int) -> Array:
    dx = np.zeros((n, drows.shape[1]))
    for row, choice in enumerate(slot):
        if choice >= 0:
            dx[choice % n] += drows[row]
    return dx


def add_rows(rows: Array, gates: Array, place: Array) -> Array:
    k, n = gates.shape
    y = np.zeros((n, rows.shape[1]))
    for j in range(k):
        for t in range(n):
            row = place[j * n + t]
            if row >= 0:
                y[t] += gates[j, t] * rows[row]
    return y


def add_rows_backward(dy: Array, rows: Array, gates: Array, place: Array) -> tuple[Array, Array]:
    k, n = gates.shape
    drows, dgates = np.zeros_like(rows), np.zeros_like(gates)
    for j in range(k):
        for t in range(n):
            row = place[j * n + t]
            if row >= 0:
                drows[row] = gates[j, t] * dy[t]
                dgates[j, t] = dy[t] @ rows[row]
    return drows, dgates


def count_shares(comm: Comm, expert: Array, experts: int) -> Array:
    counts = np.array([np.count_nonzero(expert == e) for e in range(experts)], float)
    total = ring.all_reduce(comm, counts)
    return total / total.sum()


def balance_loss(prob: Array, share: Array, alpha: float) -> float:
    means = prob.mean(axis=0)
    return float(alpha * prob.shape[1] * np.sum(share * means))


def balance_backward(prob: Array, share: Array, alpha: float) -> Array:
    n, experts = prob.shape
    of_prob = alpha * experts / n * share
    return prob * (of_prob - (prob @ of_prob)[:, None])


def owned(experts: int, n: int, rank: int) -> range:
    return range(experts)[ring.chunk(experts, n, rank)]


def dispatch(comm: Comm, rows: Array, counts: Array) -> tuple[Array, Array]:
    held = [owned(len(counts), comm.size, rank) for rank in range(comm.size)]
    told = [np.array([counts[e] for e in of], np.int64) for of in held]
    coming = np.zeros((comm.size, len(held[comm.rank])), np.int64)
    ring.all_to_all_v(comm, told, list(coming))
    ends = np.cumsum(counts)
    mine = [rows[ends[e] - counts[e] : ends[e]] for e in range(len(counts))]
    going = [np.concatenate([np.zeros((0, rows.shape[1])), *(mine[e] for e in of)]) for of in held]
    rooms = [np.zeros((number, rows.shape[1])) for number in coming.sum(axis=1)]
    ring.all_to_all_v(comm, going, rooms)
    arrived = [np.zeros((0, rows.shape[1]))]
    for e in range(coming.shape[1]):
        for source in range(comm.size):
            begin = coming[source, :e].sum()
            arrived.append(rooms[source][begin : begin + coming[source, e]])
    return np.concatenate(arrived), coming


def combine(comm: Comm, rows: Array, coming: Array, counts: Array) -> Array:
    going = [np.zeros((number, rows.shape[1])) for number in coming.sum(axis=1)]
    begin = 0
    for e in range(coming.shape[1]):
        for source in range(comm.size):
            size, first = coming[source, e], coming[source, :e].sum()
            going[source][first : first + size] = rows[begin : begin + size]
            begin += size
    back = [
        np.zeros((sum(int(counts[e]) for e in owned(len(counts), comm.size, rank)), rows.shape[1]))
        for rank in range(comm.size)
    ]
    ring.all_to_all_v(comm, going, back)
    return np.concatenate(back)


def sum_gradients(dense: Sequence[Array], experts: Sequence[Array], world: Comm, copies: Comm) -> None:
    for gradient in dense:
        gradient[:] = ring.all_reduce(world, gradient) / world.size
    for gradient in experts:
        gradient[:] = ring.all_reduce(copies, gradient) / world.size
