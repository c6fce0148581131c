"""DeepSpeed's learning rates (runtime/lr_schedules.py, version 0.19.6) as functions of an update's number, from 0.

DeepSpeed advances a schedule after an update. So the first update has the schedule's initial rate, and update u has the
rate of iteration i = u - 1. With warmup_min_lr 0, the default, the first two updates therefore change nothing: the
initial rate is 0, and so is log(1). Updates are counted, not steps: an overflow does not advance a schedule.
"""

import math
from dataclasses import dataclass


def warmed(i: int, steps: int, kind: str) -> float:
    """The progress of the warm-up, from 0 to 1: logarithmic (the default) or linear."""
    steps = max(2, steps)
    if i >= steps:
        return 1.0
    return math.log(i + 1) / math.log(steps) if kind == "log" else i / steps


@dataclass(frozen=True)
class WarmupLR:
    """From `low` to `high`, then constant. With `total`, WarmupDecayLR: then linearly down to `low` at i = `total`."""

    low: float
    high: float
    steps: int
    kind: str = "log"
    total: int | None = None

    def __call__(self, update: int) -> float:
        i, steps = update - 1, max(2, self.steps)
        if i < 0:
            return self.low
        share = warmed(i, self.steps, self.kind)
        if self.total is not None and i >= steps:
            share = max(0.0, (self.total - i) / max(1, self.total - steps))
        return self.low + (self.high - self.low) * share


@dataclass(frozen=True)
class WarmupCosineLR:
    """From `low` times the optimizer's rate up to that rate, then half a cosine down to `floor` times it."""

    lr: float
    low: float
    steps: int
    total: int
    floor: float
    kind: str = "log"

    def __call__(self, update: int) -> float:
        i, steps = update - 1, max(2, self.steps)
        if i < 0:
            return 0.0
        if i < steps:
            return self.lr * (self.low + (1 - self.low) * warmed(i, steps, self.kind))
        done = min(1.0, (i - steps + 1) / max(1, self.total - steps))
        return self.lr * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2)


@dataclass(frozen=True)
class RangeTest:
    """LRRangeTest: from `low` up without end, by `rate` times `low` every `size` updates; in stairs, or not."""

    low: float
    size: int
    rate: float
    stairs: bool

    def __call__(self, update: int) -> float:
        interval = update // self.size if self.stairs else update / self.size
        return self.low * (1 + self.rate * interval)


@dataclass(frozen=True)
class OneCycle:
    """From `low` to `high` in `up` updates, back in `down`, then low/(1 + rate·n/size) in the n-th update after that.
    size 0: it stays at `low`."""

    low: float
    high: float
    up: int
    down: int
    rate: float
    size: int

    def __call__(self, update: int) -> float:
        after = update - self.up - self.down
        if after > 0:
            return self.low / (1 + self.rate * after / self.size) if self.size else self.low
        share = update / self.up if update <= self.up else -after / self.down
        return self.low + (self.high - self.low) * share
