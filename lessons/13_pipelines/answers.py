"""Lesson 13's own functions, which the notebook uses where a gap is open: look here after you have tried."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from given import Order, Span

from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- the gaps --------------------------------------------------------------------------------------------------------


def idle_share(spans: Sequence[Sequence[Span]]) -> float:
    busy = sum(end - start for of_stage in spans for _, _, start, end in of_stage)
    step = max(of_stage[-1][3] for of_stage in spans)
    return 1 - busy / (len(spans) * step)


def forwards_first(m: int) -> Order:
    return [("F", k) for k in range(m)] + [("BW", k) for k in reversed(range(m))]


def in_flight(order: Order) -> int:
    now = most = 0
    for letter, _ in order:
        now += (letter == "F") - (letter in ("W", "BW"))
        most = max(most, now)
    return most


def b_and_w_apart(m: int, ahead: int, late: int) -> Order:
    order: Order = [("F", k) for k in range(ahead)]
    for k in range(m):
        order.append(("B", k))
        if k >= late:
            order.append(("W", k - late))
        if k + ahead < m:
            order.append(("F", k + ahead))
    return order + [("W", k) for k in range(m - late, m)]


def updates_between(order: Order, k: int) -> int:
    between = order[order.index(("F", k)) : order.index(("BW", k))]
    return sum(letter == "BW" for letter, _ in between)


def stage_of(part: int, p: int, shape: str) -> int:
    if shape == "v":
        return part if part < p else 2 * p - 1 - part
    return p - 1 - part if shape == "cross" else part % p


# ---- the exercise ----------------------------------------------------------------------------------------------------


def clock(orders: Sequence[Order], costs: dict[str, float], latency: float = 0) -> list[list[Span]]:
    p, last = len(orders), len(orders) - 1
    time = {**costs, "BW": costs["B"] + costs["W"]}
    spans: list[list[Span]] = [[] for _ in orders]
    ended: dict[tuple[str, int, int], float] = {}  # (letter, stage, micro-batch); BW ends B and W
    going = True
    while going:
        going = False
        for s, order in enumerate(orders):
            while len(spans[s]) < len(order):
                letter, k = order[len(spans[s])]
                if letter == "F":
                    need = [("F", s - 1, k)] if s > 0 else []
                elif letter == "W":
                    need = [("B", s, k)]
                else:
                    need = [("F", s, k), *([("B", s + 1, k)] if s < last else [])]
                if any(thing not in ended for thing in need):
                    break
                free = spans[s][-1][3] if spans[s] else 0
                start = max([free, *(ended[thing] + latency * (thing[1] != s) for thing in need)])
                end = start + time[letter]
                spans[s].append((letter, k, start, end))
                ended[letter[0], s, k] = end
                going = True
    if any(len(spans[s]) < len(orders[s]) for s in range(p)):
        raise ValueError("deadlock")
    return spans


def gpipe(s: int, p: int, m: int) -> Order:
    return forwards_first(m)


def one_f_one_b(s: int, p: int, m: int) -> Order:
    order: Order = []
    for k in range(m + p - s):
        if k >= p - s:
            order.append(("BW", k - (p - s)))
        if k < m:
            order.append(("F", k))
    return order


def zb_h1(s: int, p: int, m: int) -> Order:
    return b_and_w_apart(m, min(p - s, m), min(s, m))


def perform(comm: Comm, stage: Any, order: Order) -> None:
    def receive(source: int) -> Array:
        out = np.empty(stage.shape)
        comm.recv(out, source)
        return out

    perform_with(comm, stage, order, receive)


def shorter(s: int, p: int, m: int, limit: int) -> Order:
    ahead = min(limit - s, 2 * (p - s) - 1)
    return b_and_w_apart(m, ahead, limit - ahead)


def interleaved(s: int, p: int, m: int, v: int) -> list[tuple[str, int, int]]:
    things = [(k, c) for group in range(0, m, p) for c in range(v) for k in range(group, group + p)]
    ahead = min(2 * (p - s - 1) + (v - 1) * p + 1 if v > 1 else p - s, len(things))
    order = [("F", k, c) for k, c in things[:ahead]]
    for i, (k, c) in enumerate(things):
        order.append(("BW", k, v - 1 - c))
        order += [("F", *thing) for thing in things[ahead + i : ahead + i + 1]]
    return order


def perform_with(comm: Comm, stage: Any, order: Order, receive: Callable[[int], Array]) -> None:
    """Like `perform`. receive(source) returns an array with that rank's next message."""
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    requests = []
    for letter, k in order:
        if letter == "F":
            y = stage.forward(k, None if first else receive(comm.rank - 1))
            if not last:
                requests.append(comm.isend(y, comm.rank + 1))
        if letter in ("B", "BW"):
            dx = stage.backward(k, None if last else receive(comm.rank + 1))
            if letter == "BW":
                stage.weight(k)
            if not first:
                requests.append(comm.isend(dx, comm.rank - 1))
        if letter == "W":
            stage.weight(k)
    for request in requests:
        request.wait()


def clock_of_chunks(orders: Sequence[Sequence[tuple[str, int, int]]], costs: dict[str, float]) -> list[list[Any]]:
    """Like `clock`, for tasks (letter, k, chunk) with F and BW: chunk c of stage s is part c·p + s of the model. For
    each stage the list of (letter, k, start, end, chunk)."""
    p = len(orders)
    last = p * (1 + max(chunk for order in orders for _, _, chunk in order)) - 1
    time = {**costs, "BW": costs["B"] + costs["W"]}
    spans: list[list[Any]] = [[] for _ in orders]
    ended: dict[tuple[str, int, int], float] = {}  # (letter, part of the model, micro-batch)
    going = True
    while going:
        going = False
        for s, order in enumerate(orders):
            for letter, k, chunk in order[len(spans[s]) :]:
                part = chunk * p + s
                need = [("F", part - 1, k)] if letter == "F" else [("F", part, k), ("BW", part + 1, k)]
                need = [thing for thing in need if 0 <= thing[1] <= last]
                if any(thing not in ended for thing in need):
                    break
                start = max([spans[s][-1][3] if spans[s] else 0, *(ended[thing] for thing in need)])
                ended[letter, part, k] = start + time[letter]
                spans[s].append((letter, k, start, start + time[letter], chunk))
                going = True
    if any(len(of_stage) < len(order) for of_stage, order in zip(spans, orders, strict=True)):
        raise ValueError("deadlock")
    return spans
