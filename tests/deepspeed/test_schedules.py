"""DeepSpeed's schedules: values worked out by hand from its formulas."""

import math

import pytest

from minidist.deepspeed.scales import FixedLossScale, ForgivingLossScale
from minidist.deepspeed.schedules import OneCycle, RangeTest, WarmupCosineLR, WarmupLR


def rates(schedule: WarmupLR | WarmupCosineLR | RangeTest | OneCycle, *updates: int) -> list[float]:
    return [schedule(update) for update in updates]


def test_warmup_begins_with_two_updates_at_its_minimum() -> None:
    """The step of the schedule follows that of the optimizer, and log(1) is 0."""
    linear = WarmupLR(0.0, 1.0, steps=4, kind="linear")
    assert rates(linear, 0, 1, 2, 3, 4, 5, 99) == [0, 0, 0.25, 0.5, 0.75, 1, 1]
    by_log = WarmupLR(0.5, 1.5, steps=16)
    assert rates(by_log, 0, 1, 2, 4, 8, 16, 17, 99) == pytest.approx([0.5, 0.5, 0.75, 1, 1.25, 1.5, 1.5, 1.5])


def test_warmup_of_one_step_is_one_of_two() -> None:
    assert rates(WarmupLR(0.0, 1.0, steps=1, kind="linear"), 0, 1, 2, 3) == [0, 0, 0.5, 1]


def test_decay_reaches_zero_at_the_total() -> None:
    decay = WarmupLR(0.0, 1.0, steps=2, kind="linear", total=6)
    assert rates(decay, 2, 3, 4, 5, 6, 7, 8) == [0.5, 1, 0.75, 0.5, 0.25, 0, 0]
    assert rates(WarmupLR(0.0, 1.0, steps=5, kind="linear", total=3), 5, 6, 7) == [0.8, 0, 0]


def test_cosine() -> None:
    cosine = WarmupCosineLR(2.0, low=0.5, steps=2, total=6, floor=0.1, kind="linear")
    assert rates(cosine, 0, 1, 2) == [0, 1, 1.5]
    down = [2 * (0.1 + 0.9 * (1 + math.cos(math.pi * k / 4)) / 2) for k in (1, 2, 3, 4)]
    assert rates(cosine, 3, 4, 5, 6) == pytest.approx(down)
    assert rates(cosine, 7, 100) == pytest.approx([0.2, 0.2])  # and there it stays


def test_range_test() -> None:
    assert rates(RangeTest(0.1, size=4, rate=2, stairs=False), 0, 2, 4, 8) == pytest.approx([0.1, 0.2, 0.3, 0.5])
    assert rates(RangeTest(0.1, size=4, rate=2, stairs=True), 0, 3, 4, 7, 8) == pytest.approx([0.1, 0.1, 0.3, 0.3, 0.5])


def test_one_cycle() -> None:
    cycle = OneCycle(1.0, 3.0, up=4, down=2, rate=0.5, size=2)
    assert rates(cycle, 0, 2, 4, 5, 6) == [1, 2, 3, 2, 1]
    assert rates(cycle, 7, 8, 10) == pytest.approx([1 / 1.25, 1 / 1.5, 1 / 2])
    assert rates(OneCycle(1.0, 3.0, up=4, down=2, rate=0.5, size=0), 7, 100) == [1, 1]


def test_a_fixed_loss_scale_stays() -> None:
    scale = FixedLossScale(128.0, minimum=128.0)
    for overflow in (True, True, False, True):
        scale.update(overflow)
    assert scale.scale == 128
    assert scale.step == 4


def test_consecutive_hysteresis_forgives_after_any_good_step() -> None:
    """Hysteresis 2: one overflow is forgiven, until a good step; after it one more."""
    patient, strict = ForgivingLossScale(16.0), ForgivingLossScale.__mro__[1](16.0)
    for overflow in (True, False, True, False, True, True):
        patient.update(overflow)
        strict.update(overflow)
    assert patient.scale == 8  # of the last two the second
    assert strict.scale == 2  # but for the first, every one
