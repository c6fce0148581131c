"""Mixed precision: the loss scale step by step, the bytes, and the facts of float16 that make both necessary."""

import sys

import numpy as np
import pytest

from minidist import UsageError
from minidist.deepspeed.scales import FixedLossScale
from minidist.engine import Engine, Settings
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import SGD
from minidist.nn.precision import PRECISIONS, LossScale, precision
from minidist.programs.chapter import find


def trace(scale, overflows):
    """The scale after each step."""
    scales = []
    for overflow in overflows:
        scale.update(overflow)
        scales.append(scale.scale)
    return scales


def test_the_first_overflow_is_free_and_then_each_halves():
    scale = LossScale()
    assert scale.scale == 65536
    assert trace(scale, [True] * 5) == [65536, 32768, 16384, 8192, 4096]


def test_doubles_after_a_thousand_steps_and_at_every_further_thousand():
    scales = trace(LossScale(), [False] * 3002)
    assert [i + 1 for i in range(1, 3002) if scales[i] != scales[i - 1]] == [1001, 2001, 3001]  # the calls that double
    assert scales[999:1001] == [65536, 131072]
    assert scales[-1] == 8 * 65536


def test_an_overflow_starts_the_thousand_afresh():
    scales = trace(LossScale(), [False] * 500 + [True] + [False] * 1001)
    assert scales == [65536] * 1501 + [131072]  # the overflow was call 501; 1000 good ones later, the next one doubles


def test_forgiveness_is_spent_until_the_scale_doubles():
    scale = LossScale(window=3)
    # step:                0      1     2      3      4      5      6      7      8     9
    overflows = [True, False, True, False, False, False, False, False, True, True]
    assert trace(scale, overflows) == [65536, 65536, 32768, 32768, 32768, 32768, 65536, 65536, 65536, 32768]
    #            free ^             ^ halves                            ^ doubles         ^ free  ^ halves


def test_gives_up_at_the_minimum():
    scale = LossScale(scale=4.0, minimum=1.0)
    assert trace(scale, [True] * 3) == [4, 2, 1]
    with pytest.raises(OverflowError, match="minimum loss scale 1: lower --lr"):
        scale.update(overflow=True)
    odd = LossScale(scale=3.0, minimum=2.0, hysteresis=1)
    assert trace(odd, [True]) == [2.0]  # not below the minimum


def test_it_goes_on_from_anothers_state_by_a_rule_of_its_own():
    other = LossScale(scale=2.0**20, window=7, hysteresis=5)
    trace(other, [False, True, True])
    mine = LossScale(window=3, hysteresis=2, minimum=8.0)
    mine.resume(vars(other))
    assert (mine.scale, mine.forgiven_left, mine.step, mine.last_overflow) == (2.0**20, 1, 3, 2)
    assert (mine.window, mine.hysteresis, mine.minimum) == (3, 2, 8.0)
    low = LossScale(minimum=2.0**21)
    low.resume(vars(other))
    assert low.scale == 2.0**21
    fixed = FixedLossScale(128.0, minimum=128.0)
    fixed.resume(vars(other))
    assert (fixed.scale, fixed.step) == (128.0, 3)


def test_an_overflow_is_skipped_and_the_weights_stay():
    """Gradients of 65,520 and more are infinite in float16."""
    engine = Engine(gpt(GPTConfig(5, 4, layers=1, heads=1, width=4)), Settings())
    engine.loss_scale.scale = 2.0**40
    before = {flat: flat.param.copy() for flat in engine.flats}
    tokens = np.array([[0, 1, 2, 3]])
    for updates, scale in ((0, 2.0**40), (0, 2.0**39), (0, 2.0**38)):
        engine.backward(engine.forward(tokens, tokens))
        engine.step()
        assert (engine.updates, engine.loss_scale.scale) == (updates, scale)
    assert all((flat.param == param).all() for flat, param in before.items())
    engine.loss_scale.scale = 1024.0
    engine.backward(engine.forward(tokens, tokens))
    engine.step()
    assert (engine.steps, engine.updates) == (4, 1)
    assert all((flat.param != param).any() for flat, param in before.items())


def test_an_update_does_not_show_the_loss_scale():
    """Plain gradient descent: unlike Adam and clipping, it would show a gradient that is 1024 times too long."""

    def updated(precision):
        settings = Settings(precision=PRECISIONS[precision], optimizer=SGD(), learning_rate=lambda update: 1.0, clip=0)
        engine = Engine(gpt(GPTConfig(5, 4, layers=1, heads=1, width=4)), settings)
        if precision == "mixed":
            engine.loss_scale.scale = 1024.0
        start = np.concatenate([flat.master.copy() for flat in engine.flats])
        engine.backward(engine.forward(np.array([[0, 1, 2, 3]]), np.array([[4, 0, 2, 2]])))
        engine.step()
        return np.concatenate([flat.master for flat in engine.flats]) - start

    exact, mixed = updated("fp64"), updated("mixed")
    assert np.linalg.norm(mixed - exact) < 0.01 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("name", "stored", "of_adam"), [("mixed", 2, 12), ("bf16", 2, 12), ("fp32", 4, 8), ("fp64", 8, 16)]
)
def test_bytes_of_a_parameter(name, stored, of_adam):
    found = precision(name)
    assert found.bytes == stored
    assert (2 + found.mixed) * np.dtype(found.updated).itemsize == of_adam
    assert found.mixed == (stored == 2)
    assert (found.loss_scale > 1) == (name == "mixed")  # bfloat16 has the range of float32


def test_without_ml_dtypes_bf16_is_refused_in_a_line(monkeypatch):
    """Before any work, with what to install; everything else needs no such package."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UsageError, match=r"needs ml_dtypes: pip install --editable '.\[bf16\]'"):
        find("train").job(["--precision", "bf16"], ranks=1)
    find("train").job(["--precision", "mixed"], ranks=1)


# ---- why: Micikevicius et al. 2018, section 3 ------------------------------------------------------------------------


def test_small_updates_stall_without_a_master_copy():
    """A thousand updates of 2⁻¹² of a weight: float16 has 11 bits, so each is rounded away, unless they are summed in
    float32 first."""

    def train(dtype):
        weight, gradient = np.ones(3, dtype), np.full(3, -(2.0**-12), np.float16)
        for step in range(1, 1001):
            SGD().update(weight, gradient, [], scale=1.0, lr=1.0, step=step, decayed=0)
        return weight.astype(np.float16)

    np.testing.assert_array_equal(train(np.float16), 1)
    np.testing.assert_array_equal(train(np.float32), np.float16(1 + 1000 * 2.0**-12))


def test_facts_of_float16():
    assert np.float16(2048) + np.float16(1) == np.float16(2048)  # 11 bits: 2049 has 12
    assert np.float16(2.0**-24) > 0
    assert np.float16(2.0**-25) == 0  # what the loss scale lifts above the smallest number
    assert float(np.float16(2.0**-25 * 65536)) / 65536 == 2.0**-25
    with np.errstate(over="ignore"):
        assert np.float16(65504) < np.float16(65520) == np.inf
