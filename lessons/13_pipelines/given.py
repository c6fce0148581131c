"""What lesson 13's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minidist.papers.zero_bubble import TABLE_5

Array = np.ndarray
Order = list[tuple[str, int]]
Span = tuple[str, int, float, float]


def one_at_a_time(m: int) -> Order:
    """The whole of a micro-batch before the next."""
    return [(letter, k) for k in range(m) for letter in ("F", "BW")]


def compare_orders(p: int, forwards_first: Any, idle_share: Any, in_flight: Any) -> tuple[dict[int, Any], Any]:
    """For some m: the idle time that 1F1B saves against all forwards first, in percent, and what its stages hold."""
    from answers import clock, one_f_one_b

    print(f"{'m':>4}   idle: GPipe, 1F1B     {'all forwards first':20}{'1F1B holds':14}computed min(p-s, m)")
    saved, most = dict[int, Any](), dict[int, Any]()
    for m in (2, 4, 8, 64):
        orders = [forwards_first(m) for s in range(p)], [one_f_one_b(s, p, m) for s in range(p)]
        shares = [idle_share(clock(of, {"F": 1, "B": 1, "W": 1})) for of in orders]
        holds = [[in_flight(order) for order in of] for of in orders]
        saved[m], most[m] = 100 * (1 - shares[1] / shares[0]), holds[1]
        computed = [min(p - s, m) for s in range(p)]
        print(f"{m:>4}   {shares[0]:11.4f}{shares[1]:8.4f}   {holds[0]!s:20}{holds[1]!s:14}{computed}")
    return saved, most


def in_time(spans: Sequence[Sequence[Span]]) -> list[tuple[str, int, int]]:
    """The tasks of all stages as (letter, stage, micro-batch), in order of time."""
    happened = sorted((start, s, letter, k) for s, of in enumerate(spans) for letter, k, start, _ in of)
    return [(letter, s, k) for _, s, letter, k in happened]


def reproduce_table_5(
    schedules: Mapping[str, Callable[[int, int, int], Order]], longest: Callable[[Any], float]
) -> int:
    """Print idle shares with the times that the paper measured, next to its printed ones; return how many agree."""
    from answers import clock

    names, agree = {"1f1b": "1F1B", "zb-h1": "ZB-H1", "zb-h2": "ZB-H2"}, 0
    print(f"{'model':7}{'p':>3}{'m':>5}" + "".join(f"{name:>9}{'printed':>9}" for name in names.values()))
    for row in TABLE_5:
        line = f"{row.model:7}{row.p:>3}{row.m:>5}"
        for key, figure in row.bubble.items():
            orders = [schedules[names[key]](s, row.p, row.m) for s in range(row.p)]
            cost = longest(clock(orders, {"F": row.t_f, "B": row.t_b, "W": row.t_w}, row.t_comm))
            rate = (cost - row.m * (row.t_f + row.t_b + row.t_w)) / cost
            agree += f"{rate:.4f}" == figure.printed
            line += f"{rate:>9.4f}{figure.printed:>9}"
        print(line)
    return agree
