"""A clock that asks for what it needs, and that in turn: a deadlock has no end."""
# loses: clock_deadlock
# says: clock raises RecursionError; ValueError is wanted

from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray
Order = list[tuple[str, int]]
Span = tuple[str, int, float, float]


def clock(orders, costs, latency=0):
    ends = {}

    def end(s, i):
        if i < 0:
            return 0
        if (s, i) not in ends:
            letter, k = orders[s][i]
            needs = [end(s, i - 1)]
            if letter == "F" and s > 0:
                needs.append(end(s - 1, place(s - 1, "F", k)) + latency)
            if letter in ("B", "BW") and s < len(orders) - 1:
                needs.append(end(s + 1, place(s + 1, "B", k)) + latency)
            if letter in ("B", "BW"):
                needs.append(end(s, place(s, "F", k)))
            if letter == "W":
                needs.append(end(s, place(s, "B", k)))
            ends[s, i] = max(needs) + sum(costs[one] for one in letter)
        return ends[s, i]

    def place(s, letter, k):
        return next(i for i, thing in enumerate(orders[s]) if thing[0][0] == letter and thing[1] == k)

    spans = []
    for s, order in enumerate(orders):
        spans.append([])
        for i, (letter, k) in enumerate(order):
            spans[s].append((letter, k, end(s, i) - sum(costs[one] for one in letter), end(s, i)))
    return spans


def gpipe(s: int, p: int, m: int) -> Order:
    order = [("F", k) for k in range(m)]
    order += [("BW", k) for k in range(m - 1, -1, -1)]
    return order


def one_f_one_b(s: int, p: int, m: int) -> Order:
    ahead = min(p - s, m)
    order = [("F", k) for k in range(ahead)]
    for k in range(m):
        order.append(("BW", k))
        if k + ahead < m:
            order.append(("F", k + ahead))
    return order


def late_weights(m: int, ahead: int, late: int) -> Order:
    order = [("F", k) for k in range(min(ahead, m))]
    for k in range(m):
        order.append(("B", k))
        if k >= late:
            order.append(("W", k - late))
        if k + ahead < m:
            order.append(("F", k + ahead))
    order += [("W", k) for k in range(max(0, m - late), m)]
    return order


def zb_h1(s: int, p: int, m: int) -> Order:
    return late_weights(m, p - s, s)


def perform(comm: Comm, stage: Any, order: Order) -> None:
    before, after = comm.rank - 1, comm.rank + 1
    requests = []

    def received(source: int) -> Array:
        out = np.empty(stage.shape)
        comm.recv(out, source)
        return out

    for letter, k in order:
        if letter == "F":
            y = stage.forward(k, received(before) if before >= 0 else None)
            if after < comm.size:
                requests.append(comm.isend(y, after))
        elif letter == "W":
            stage.weight(k)
        else:
            dx = stage.backward(k, received(after) if after < comm.size else None)
            if letter == "BW":
                stage.weight(k)
            if before >= 0:
                requests.append(comm.isend(dx, before))
    for request in requests:
        request.wait()


def shorter(s: int, p: int, m: int, limit: int) -> Order:
    ahead = min(limit - s, 2 * (p - s) - 1)
    return late_weights(m, ahead, limit - ahead)


def interleaved(s: int, p: int, m: int, v: int) -> list[tuple[str, int, int]]:
    forwards, backwards = [], []
    for group in range(0, m, p):
        for chunk in range(v):
            for k in range(group, group + p):
                forwards.append(("F", k, chunk))
                backwards.append(("BW", k, v - 1 - chunk))
    ahead = 2 * (p - s - 1) + (v - 1) * p + 1 if v > 1 else p - s
    order = forwards[:ahead]
    waiting = forwards[ahead:]
    for backward in backwards:
        order.append(backward)
        if waiting:
            order.append(waiting.pop(0))
    return order
