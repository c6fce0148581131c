"""A right answer in another form: generators, and a clock that asks who can go on first."""
# keeps: clock, clock_latency, clock_deadlock, gpipe, one_f_one_b, one_f_one_b_memory, zb_h1, zb_h1_memory, perform, perform_arrays, perform_early, perform_waits, shorter, shorter_more, interleaved

from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray
Order = list[tuple[str, int]]
Span = tuple[str, int, float, float]


def clock(orders, costs, latency=0):
    places, spans = [0] * len(orders), [[] for _ in orders]
    ended = {}
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        best = None
        for s, (place, order) in enumerate(zip(places, orders, strict=True)):
            if place == len(order):
                continue
            letter, k = order[place]
            times = [spans[s][-1][3] if spans[s] else 0.0]
            if letter == "F" and s > 0:
                times.append(ended.get(("F", s - 1, k), float("inf")) + latency)
            if letter == "W":
                times.append(ended.get(("B", s, k), float("inf")))
            if letter[0] == "B":
                times.append(ended.get(("F", s, k), float("inf")))
                if s < len(orders) - 1:
                    times.append(ended.get(("B", s + 1, k), float("inf")) + latency)
            if max(times) < float("inf") and (best is None or max(times) < best[0]):
                best = max(times), s, letter, k
        if best is None:
            raise ValueError(f"nobody can go on: {places}")
        start, s, letter, k = best
        end = start + sum(costs[one] for one in letter)
        ended[letter[0], s, k] = end
        spans[s].append((letter, k, start, end))
        places[s] += 1
    return spans


def gpipe(s, p, m):
    for k in range(m):
        yield "F", k
    while k >= 0:
        yield "BW", k
        k -= 1


def one_f_one_b(s, p, m):
    forwards, backwards = iter(range(m)), 0
    for _, k in zip(range(p - s), forwards, strict=False):
        yield "F", k
    while backwards < m:
        yield "BW", backwards
        backwards += 1
        for k in forwards:
            yield "F", k
            break


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
