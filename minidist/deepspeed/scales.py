"""The loss scales of a DeepSpeed configuration (its section fp16), where they differ from the book's own."""

from typing import Any

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
