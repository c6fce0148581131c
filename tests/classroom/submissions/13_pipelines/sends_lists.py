"""Sends objects."""
# loses: perform, perform_arrays, perform_early, perform_waits
# says: object

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray
Order = list[tuple[str, int]]
Span = tuple[str, int, float, float]


def clock(orders: Sequence[Order], costs: dict[str, float], latency: float = 0) -> list[list[Span]]:
    p = len(orders)
    forward: dict[tuple[int, int], float] = {}  # (stage, micro-batch) -> end
    backward: dict[tuple[int, int], float] = {}
    spans: list[list[Span]] = [[] for _ in range(p)]
    free = [0.0] * p

    def ready(s: int, letter: str, k: int) -> float | None:
        """From when on it can be done; None if not yet."""
        if letter == "F":
            if s == 0:
                return 0
            return forward[s - 1, k] + latency if (s - 1, k) in forward else None
        if letter == "W":
            return backward.get((s, k))
        if (s, k) not in forward:
            return None
        if s == p - 1:
            return forward[s, k]
        return backward[s + 1, k] + latency if (s + 1, k) in backward else None

    left = sum(len(order) for order in orders)
    while left:
        before = left
        for s, order in enumerate(orders):
            for letter, k in order[len(spans[s]) :]:
                earliest = ready(s, letter, k)
                if earliest is None:
                    break
                start = max(free[s], earliest)
                end = start + sum(costs[each] for each in letter)
                spans[s].append((letter, k, start, end))
                free[s] = end
                if letter == "F":
                    forward[s, k] = end
                elif letter != "W":
                    backward[s, k] = end
                left -= 1
        if left == before:
            raise ValueError("deadlock")
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
        out[:] = comm.recv_object(source)
        return out

    for letter, k in order:
        if letter == "F":
            y = stage.forward(k, received(before) if before >= 0 else None)
            if after < comm.size:
                comm.send_object(y.tolist(), after)
        elif letter == "W":
            stage.weight(k)
        else:
            dx = stage.backward(k, received(after) if after < comm.size else None)
            if letter == "BW":
                stage.weight(k)
            if before >= 0:
                comm.send_object(dx.tolist(), before)
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
