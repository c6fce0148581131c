"""The loss scales of a DeepSpeed configuration (its section fp16), where they differ from the book's own."""

from typing import Any

from minidist import UsageError
from minidist.deepspeed.config import Config
from minidist.nn.precision import LossScale


class FixedLossScale(LossScale):
    """fp16.loss_scale: the same in every step. A step whose gradients overflow is still skipped."""

    def resume(self, state: dict[str, Any]) -> None:
        self.step = state["step"]

    def update(self, overflow: bool) -> None:
        self.step += 1


class ForgivingLossScale(LossScale):
    """fp16.consecutive_hysteresis: a step without an overflow forgives all earlier overflows."""

    def update(self, overflow: bool) -> None:
        super().update(overflow)
        if not overflow:
            self.forgiven_left = self.hysteresis - 1


class EagerLossScale(LossScale):
    """Without ZeRO (runtime/fp16/fused_optimizer.py): each overflow halves the scale, and at the minimum it stays."""

    def update(self, overflow: bool) -> None:
        if overflow:
            self.scale = max(self.scale / 2, self.minimum)
            self.last_overflow = self.step
            self.step += 1
        else:
            super().update(overflow)


def loss_scale_of(config: Config, eager: bool, notes: list[str]) -> LossScale:
    """The loss scale of a configuration. eager: each overflow halves it. Adds to the notes. Raises UsageError."""
    fixed = config["fp16.loss_scale"]
    if fixed:
        return FixedLossScale(fixed, minimum=fixed)
    for path in ("fp16.loss_scale_window", "fp16.min_loss_scale"):
        if config[path] == 0:
            raise UsageError(f"{path} 0 is for a fixed loss_scale alone: make it at least 1")
    first, minimum = 2.0 ** config["fp16.initial_scale_power"], float(config["fp16.min_loss_scale"])
    if first < minimum:
        raise UsageError(f"fp16.min_loss_scale {minimum:g} is above 2^initial_scale_power, {first:g}")
    if eager:
        for path in ("fp16.hysteresis", "fp16.consecutive_hysteresis"):
            if path in config.stated:
                notes.append(f"{path} has no effect in stage 0, nor in DeepSpeed's: each overflow halves the scale")
        return EagerLossScale(first, config["fp16.loss_scale_window"], 1, minimum)
    kind = ForgivingLossScale if config["fp16.consecutive_hysteresis"] else LossScale
    return kind(first, config["fp16.loss_scale_window"], config["fp16.hysteresis"], minimum)
