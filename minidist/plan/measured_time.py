"""Steps that others timed, next to the model of time: the 43 runs of `measured.toml`, on 8 B200.

One number is taken from them, the ceiling: the share of its peak that a device reaches. It is that of the first run,
and the same for all others. So a row says how far the model's other terms are off, and in which order it puts layouts.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from minidist.plan.measured import FIGURES, cells
from minidist.plan.search import Evaluator
from minidist.plan.show import GB, wrapped
from minidist.plan.time import Cluster

B200 = Cluster(8, 180 * GB, 8, flops=2250e12, within=900e9)  # dense bfloat16; NVLink 5, in one direction


class Timed(NamedTuple):
    """A run: its group has the same model, context and number of micro-batches."""

    name: str
    group: tuple[str, int, int]
    tokens: int  # of a step
    measured: float  # seconds
    modeled: float

    @property
    def off(self) -> float:
        return self.modeled / self.measured - 1


def compare(cluster: Cluster) -> list[Timed]:
    """Every run that was timed, by the number of its micro-batches."""
    found = []
    for cell, of in zip(cells(), FIGURES["cells"], strict=True):
        for m, milliseconds in of["milliseconds"].items():
            wanted = replace(cell.wanted, batch=int(m) * cell.choice.dp)
            step = Evaluator(wanted, cluster).row(cell.choice).seconds.step
            group = of["model"], of["context"], int(m)
            found.append(Timed(f"{cell.name} m{m}", group, wanted.tokens, milliseconds / 1e3, step))
    return found


@cache
def ceiling() -> float:
    """The share of its peak with which the model's first run takes as long as it took."""
    low, high = 0.01, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        cell, of = next(cells()), FIGURES["cells"][0]
        wanted = replace(cell.wanted, batch=4 * cell.choice.dp)
        step = Evaluator(wanted, replace(B200, ceiling=middle)).row(cell.choice).seconds.step
        low, high = (middle, high) if step > of["milliseconds"]["4"] / 1e3 else (low, middle)
    return high


def in_order(rows: list[Timed]) -> tuple[int, int]:
    """Of pairs of layouts of the same group: how many the model puts in the measured order of tokens a second; and
    all."""
    pairs = [(one, other) for one, other in combinations(rows, 2) if one.group == other.group]
    right = [
        (one.tokens / one.measured > other.tokens / other.measured)
        == (one.tokens / one.modeled > other.tokens / other.modeled)
        for one, other in pairs
    ]
    return sum(right), len(right)


def lines() -> Iterator[str]:
    """The table, in 80 columns."""
    rows = compare(replace(B200, ceiling=ceiling()))
    yield f"{'time of a step, s':40} {'measured':>9} {'model':>9} {'off':>7}"
    for row in rows:
        yield f"{row.name:40} {row.measured:9.3f} {row.modeled:9.3f} {100 * row.off:+6.1f}%"
    right, pairs = in_order(rows)
    dense, mixtures = (
        sorted(abs(row.off) for row in rows if row.name.startswith("llama") == of) for of in (True, False)
    )
    yield wrapped(
        f"One number is set on the first row: a device reaches {ceiling():.3f} of {B200.flops / 1e12:,.0f} teraFLOP/s."
        f" The others are off by {100 * dense[len(dense) // 2]:.0f} % in the middle and {100 * dense[-1]:.0f} % at most"
        f" (dense), by {100 * mixtures[len(mixtures) // 2]:.0f} % and {100 * mixtures[-1]:.0f} % (mixtures). Of"
        f" {pairs} pairs of layouts of the same model, context and micro-batches, the model puts {right} in the order"
        f" that was measured. Source: {FIGURES['source']}."
    )
    yield ""


def as_rows() -> list[dict[str, Any]]:
    """The table for machines."""
    rows = compare(replace(B200, ceiling=ceiling()))
    return [{"run": row.name, "measured": row.measured, "model": row.modeled, "off": row.off} for row in rows]
