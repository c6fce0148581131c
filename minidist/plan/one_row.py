"""One layout that is asked about: does it fit, how long does a step take, and what would the next better row change?

    python -m minidist plan --model llama3-70b --layout tp=8,pp=2,dp=4,zero=1 --micro-batch 1 --recompute none
    python -m minidist plan --model llama3-8b --layout dp=8,zero=3 --assert 'memory<80GB' --assert 'mfu>0.4'

A key that is not named has a default: dp is the number of ranks that the other axes leave, the other axes are 1, ZeRO's
stage is 1, the schedule is 1F1B, and nothing is recomputed.
"""

import argparse
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minidist import UsageError
from minidist.cli.fields import choice, option, whole
from minidist.cli.options import memory_size
from minidist.papers.context import SCHEMES
from minidist.plan.choice import Choice, Wanted
from minidist.plan.orders import PLANNED
from minidist.plan.show import GB
from minidist.plan.ties import Row, is_faster
from minidist.pp.schedules import SCHEDULES

AGAIN = {"none": "none", "selective": "selective", "full": "every:1"}  # Megatron-LM's words, and the policies
NAMES = {"schedule": PLANNED, "recompute": tuple(AGAIN), "scheme": SCHEMES}  # keys with one of several values
LEAST = {"dp": 1, "tp": 1, "cp": 1, "pp": 1, "ep": 1, "zero": 0, "hosts": 1, "chunks": 1, "first": 0, "last": 0}


def layout_keys(text: str) -> dict[str, Any]:
    """An argument type: tp=8,pp=1,dp=1,zero=1. The keys are the table's columns; first and last: the layers of the
    model's first and last chunk."""
    found: dict[str, Any] = {}
    for pair in text.split(","):
        key, _, value = (word.strip() for word in pair.partition("="))
        if key not in {**NAMES, **LEAST}:
            raise argparse.ArgumentTypeError(f"has the keys {', '.join([*LEAST, *NAMES])}, not {key!r}")
        if key in found:
            raise argparse.ArgumentTypeError(f"has {key} twice")
        if key in NAMES:
            if value not in NAMES[key]:
                raise argparse.ArgumentTypeError(f"has a {key} of {', '.join(NAMES[key])}, not {value!r}")
            found[key] = value
            continue
        most = 3 if key == "zero" else 10**6
        if not re.fullmatch(r"\d{1,7}", value) or not LEAST[key] <= int(value) <= most:
            raise argparse.ArgumentTypeError(f"has a {key} from {LEAST[key]} to {most:,}, not {value!r}")
        found[key] = int(value)
    return found


class Assertion(NamedTuple):
    """What must hold of a row."""

    text: str
    quantity: str
    compare: Callable[[float, float], bool]
    value: float

    def holds(self, row: Row) -> bool:
        return self.compare(QUANTITIES[self.quantity](row), self.value)


QUANTITIES: dict[str, Callable[[Row], float]] = {
    "memory": lambda row: row.held.total,
    "states": lambda row: row.held.states,
    "step": lambda row: row.seconds.step,
    "tokens": lambda row: row.tokens,
    "mfu": lambda row: row.mfu,
}
COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


def assertion(text: str) -> Assertion:
    """An argument type: memory<80GB, mfu>0.4."""
    found = re.fullmatch(rf"\s*({'|'.join(QUANTITIES)})\s*([<>]=?)\s*(\S+)\s*", text)
    try:
        if found:
            value = memory_size(found[3]) if found[1] in ("memory", "states") else float(found[3])
            return Assertion(text.strip(), found[1], COMPARE[found[2]], value)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"compares {', '.join(QUANTITIES)} with a number, such as 'memory<80GB', not {text!r}"
    )


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    layout: dict[str, Any] | None = option(None, layout_keys, "K=N,...", "ask about this row: tp=8,pp=1,dp=1,zero=1")
    micro_batch: int | None = whole("N", "sequences; default: all, of --layout 1")
    recompute: str | None = choice(AGAIN, None, "none, selective or full; default: all, of --layout none")
    schedule: str | None = choice(PLANNED, None, "of a pipeline; default: all, of --layout 1f1b")
    asserted: tuple[Assertion, ...] = option(
        (), assertion, "'A<B'", "exit with 1 unless memory<80GB, mfu>0.4", ("--assert",), action="append"
    )

    @property
    def only(self) -> dict[str, Any]:
        """The limits of a search that these options set."""
        asked = {"schedule": self.schedule, "recompute": self.recompute and AGAIN[self.recompute]}
        return {key: value for key, value in {**asked, "rows": self.micro_batch}.items() if value}


def choice_of(own: RowOptions, ranks: int | None) -> Choice:
    """The row that --layout names, on this many ranks. Raises UsageError if they are not as many."""
    keys = dict(own.layout or {})
    for key, value in (("schedule", own.schedule), ("recompute", own.recompute)):
        if value and keys.setdefault(key, value) != value:
            raise UsageError(f"--{key} {value} and --layout {key}={keys[key]}: use one of them")
    keys.pop("scheme", None)
    others = math.prod(keys.get(axis, 1) for axis in ("tp", "cp", "pp"))
    if "dp" not in keys:
        keys["dp"] = max((ranks or 8) // others, 1)
    if ranks and keys["dp"] * others != ranks:
        axes = " x ".join(f"{axis} {keys.get(axis, 1)}" for axis in ("dp", "tp", "cp", "pp"))
        raise UsageError(f"--layout: {axes} is {keys['dp'] * others:,} ranks: use --ranks {keys['dp'] * others}")
    keys["recompute"] = AGAIN[keys.get("recompute", "none")]
    usual = {"zero": 1, "chunks": SCHEDULES[keys.get("schedule", "1f1b")].chunks}
    return Choice(**{**usual, **keys}, rows=own.micro_batch or 1)


# ---- next to other rows ----------------------------------------------------------------------------------------------


def changes(row: Row, other: Row) -> dict[str, tuple[Any, Any]]:
    """The keys in which another row differs, with both values."""
    pairs = {key: (value, getattr(other.choice, key)) for key, value in vars(row.choice).items()}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def next_better(row: Row, rows: Sequence[Row], memory: float) -> Row | None:
    """Of the rows that fit, and that are faster if this one fits: the one with fewest other keys, then the fastest."""
    better = [other for other in rows if is_faster(other, row) or row.held.total > memory]
    return min(better, key=lambda other: (len(changes(row, other)), other.seconds.step), default=None)


def compared(row: Row, other: Row) -> str:
    """What another row changes, and what that does to a step's time and to memory."""
    keys = {"rows": "micro-batch", "recompute": "recompute"}
    names = {policy: name for name, policy in AGAIN.items()} | {None: "even"}
    changed = ", ".join(
        f"{keys.get(key, key)} {names.get(one, one)} → {names.get(two, two)}"
        for key, (one, two) in changes(row, other).items()
    )
    times = {kind: seconds - getattr(row.seconds, kind) for kind, seconds in other.seconds._asdict().items()}
    most = [kind for kind in sorted(times, key=lambda kind: -abs(times[kind])) if abs(times[kind]) > 1e-6][:2]
    why = ", ".join(f"{WORDS.get(kind, kind)} {times[kind]:+.3g} s" for kind in most)
    step = f"{row.seconds.step:.4g} s → {other.seconds.step:.4g} s ({why})"
    if not (is_faster(row, other) or is_faster(other, row)):
        step = f"takes as long, its messages, hidden or not, {row.links:.3g} s → {other.links:.3g} s"
    return f"{changed}: a step {step}, memory {row.held.total / GB:.1f} → {other.held.total / GB:.1f} GB"


WORDS = {"again": "recomputation", "tensor": "tensor messages", "context": "context messages", "data": "data messages"}


def told(row: Row, rows: Sequence[Row], memory: float) -> Iterator[str]:
    """Whether a row fits, its place among all that do, and what the next better one changes. memory: for what formulas
    count."""
    if row.held.total > memory:
        yield f"It does not fit: {row.held.total / GB:,.2f} GB are needed, {memory / GB:,.2f} GB are there."
    else:
        faster = sum(is_faster(other, row) for other in rows)
        yield f"It fits. Of {len(rows):,} rows that do, {faster:,} are faster."
    if other := next_better(row, rows, memory):
        yield f"The next better row changes {compared(row, other)}."
    elif row.held.total > memory:
        yield "No other row fits."


def why_first(rows: Sequence[Row]) -> Iterator[str]:
    """Why the first row has context ranks, or has none: what the first row with the opposite changes."""
    has = rows[0].choice.cp > 1
    number = next((number for number, row in enumerate(rows) if (row.choice.cp > 1) != has), 0)
    if number:
        what = "without" if has else "with"
        yield f"Row {number + 1} is the first {what} context ranks. It changes {compared(rows[0], rows[number])}."


def notes(wanted: Wanted, own: RowOptions) -> Iterator[str]:
    """What is to be said of what the table was asked for."""
    if own.recompute == "selective" and wanted.profile.attention == "tiled":
        yield "recompute selective: attention in tiles keeps no scores, so it saves nothing, and takes time."
