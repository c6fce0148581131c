"""The clock and GPipe, and no more."""
# keeps: clock, clock_latency, clock_deadlock, gpipe
# says: half_finished.py:\d+ in perform is not written yet: it raises NotImplementedError

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
    raise NotImplementedError


def zb_h1(s: int, p: int, m: int) -> Order:
    raise NotImplementedError


def perform(comm: Comm, stage: Any, order: Order) -> None:
    raise NotImplementedError


def shorter(s: int, p: int, m: int, limit: int) -> Order:
    raise NotImplementedError


def interleaved(s: int, p: int, m: int, v: int) -> list[tuple[str, int, int]]:
    raise NotImplementedError
