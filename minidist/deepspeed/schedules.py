"""DeepSpeed's learning rates (runtime/lr_schedules.py, version 0.19.6) as functions of an update's number, from 0.

DeepSpeed advances a schedule after an update. So the first update has the schedule's initial rate, and update u has the
rate of iteration i = u - 1. With warmup_min_lr 0, the default, the first two updates therefore change nothing: the
initial rate is 0, and so is log(1). Updates are counted, not steps: an overflow does not advance a schedule.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from minidist import UsageError
from minidist.deepspeed.config import Config
from minidist.nn.optim import AdamW, Optimizer


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


def schedule_of(config: Config, rate: float, optimizer: Optimizer) -> Callable[[int], float] | None:
    """The schedule of a configuration; None if it has none. rate: the optimizer's. Raises UsageError."""
    name = config["scheduler.type"]
    params = {path.removeprefix("scheduler.params."): value for path, value in config.values.items()}
    for path in ("total_num_steps", "cycle_min_lr", "cycle_max_lr"):
        if path in params and params[path] is None:
            raise UsageError(f"scheduler.params.{path} is missing: {name} needs it")
    if name in ("WarmupLR", "WarmupDecayLR"):
        high = params["warmup_max_lr"] if params["warmup_max_lr"] is not None else rate
        steps, kind = params["warmup_num_steps"], params["warmup_type"]
        return WarmupLR(params["warmup_min_lr"], high, steps, kind, params.get("total_num_steps"))
    if name == "WarmupCosineLR":
        steps, total, kind = params["warmup_num_steps"], params["total_num_steps"], params["warmup_type"]
        return WarmupCosineLR(rate, params["warmup_min_ratio"], steps, total, params["cos_min_ratio"], kind)
    if name == "LRRangeTest":
        size, growth = params["lr_range_test_step_size"], params["lr_range_test_step_rate"]
        return RangeTest(params["lr_range_test_min_lr"], size, growth, params["lr_range_test_staircase"])
    if name == "OneCycle":
        if params["cycle_momentum"] and isinstance(optimizer, AdamW):
            raise UsageError("scheduler.params.cycle_momentum is not here: make it false")
        up = params["cycle_first_step_size"]
        down = params["cycle_second_step_size"] or up
        low, high, decay = params["cycle_min_lr"], params["cycle_max_lr"], params["decay_lr_rate"]
        return OneCycle(low, high, up, down, decay, params["decay_step_size"])
    return None
