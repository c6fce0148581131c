"""Optimizers against their textbook expressions, over pieces of any size; schedule, norm and clipping."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist.nn.ops import BLOCK
from minidist.nn.optim import SGD, AdamW, CosineSchedule, clipping_factor, sum_of_squares

sizes = st.sampled_from([0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
properties = settings(deadline=None, derandomize=True, max_examples=25)


def run(optimizer, size, decayed, grads, dtype=np.float64, lr=0.01, scale=0.5):
    """Some updates of random weights; the start and the end."""
    start = np.random.default_rng(0).standard_normal(size)
    param = start.astype(dtype)
    state = [np.zeros_like(param) for _ in range(optimizer.moments)]
    for step, grad in enumerate(grads, start=1):
        before = grad.copy()
        optimizer.update(param, grad, state, scale=scale, lr=lr, step=step, decayed=decayed)
        np.testing.assert_array_equal(grad, before)  # a gradient is only read
    return start, param


def draw_grads(size, dtype, steps=3):
    return list(np.random.default_rng(1).standard_normal((steps, size)).astype(dtype))


@properties
@given(sizes, st.floats(0, 1), st.sampled_from([np.float16, np.float64]), st.sampled_from([0.0, 0.3]))
def test_adamw_is_the_textbooks(size, part, dtype, weight_decay):
    decayed, grads = round(size * part), draw_grads(size, dtype)
    theta, param = run(AdamW(0.9, 0.95, 1e-8, weight_decay), size, decayed, grads)
    m = v = np.zeros(size)
    for t, grad in enumerate(grads, start=1):  # Loshchilov & Hutter 2019, algorithm 2
        g = 0.5 * grad.astype(np.float64)
        m = 0.9 * m + 0.1 * g
        v = 0.95 * v + 0.05 * g**2
        decay = np.where(np.arange(size) < decayed, weight_decay, 0)
        theta = theta - 0.01 * (m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8) + decay * theta)
    np.testing.assert_allclose(param, theta, rtol=1e-12, atol=1e-13)


@properties
@given(sizes, st.floats(0, 1), st.sampled_from([np.float16, np.float64]), st.sampled_from([0.0, 0.9]))
def test_sgd_is_the_textbooks(size, part, dtype, momentum):
    decayed, grads = round(size * part), draw_grads(size, dtype)
    theta, param = run(SGD(momentum, weight_decay=0.3), size, decayed, grads)
    v = np.zeros(size)
    for grad in grads:
        v = momentum * v + 0.5 * grad.astype(np.float64)
        theta = theta - 0.01 * (v + np.where(np.arange(size) < decayed, 0.3, 0) * theta)
    np.testing.assert_allclose(param, theta, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.1), SGD(), SGD(momentum=0.9, weight_decay=0.1)])
def test_float32_is_near_and_a_shard_is_updated_as_in_the_whole(optimizer):
    """ZeRO rests on it: the update is element by element, so a piece of it is the same to the bit."""
    size, decayed, cut = BLOCK + 300, BLOCK + 100, BLOCK - 50
    grads = draw_grads(size, np.float32)
    exact, (start, whole) = run(optimizer, size, decayed, grads)[1], run(optimizer, size, decayed, grads, np.float32)
    np.testing.assert_allclose(whole, exact, rtol=1e-4, atol=1e-6)
    shard = start[cut:].astype(np.float32)
    state = [np.zeros_like(shard) for _ in range(optimizer.moments)]
    for step, grad in enumerate(grads, start=1):
        optimizer.update(shard, grad[cut:], state, scale=0.5, lr=0.01, step=step, decayed=decayed - cut)
    np.testing.assert_array_equal(shard, whole[cut:])


def test_the_first_step_of_adam_is_the_learning_rate():
    """m/√v is ±1 when there is one gradient, of whatever size: which is what the bias corrections are for."""
    _, param = run(AdamW(), 3, 0, [np.array([1e-3, -5.0, 1e6])])
    np.testing.assert_allclose(run(AdamW(), 3, 0, [])[1] - param, [0.01, -0.01, 0.01], rtol=1e-4)


def test_moments_cost_what_the_papers_say():
    assert (AdamW().moments, SGD(momentum=0.9).moments, SGD().moments) == (2, 1, 0)


def test_cosine_schedule():
    schedule = CosineSchedule(peak=3.0, floor=1.0, warmup=4, total=12)
    rates = [schedule(update) for update in range(15)]
    np.testing.assert_allclose(rates[:5], [0.6, 1.2, 1.8, 2.4, 3.0])  # equal steps, none of them 0
    assert rates[6] == pytest.approx(2 + math.sqrt(0.5))  # a quarter of the way: cos 45°
    assert rates[8] == pytest.approx(2)  # half-way
    assert rates[10] == pytest.approx(2 - math.sqrt(0.5))
    assert rates[12:] == [1.0, 1.0, 1.0]
    assert CosineSchedule(3.0, 1.0, warmup=0, total=0)(0) == pytest.approx(3)
    assert CosineSchedule(3.0, 1.0, warmup=0, total=1)(1) == pytest.approx(1)


@properties
@given(sizes, st.sampled_from([np.float16, np.float32, np.float64]))
def test_sum_of_squares(size, dtype):
    x = np.random.default_rng(2).standard_normal(size).astype(dtype)
    assert sum_of_squares(x) == pytest.approx(math.fsum(float(value) ** 2 for value in x), rel=1e-12)
    for bad in (np.nan, np.inf, -np.inf):
        for place in {0, size // 2, size - 1} if size else ():
            x[place], value = bad, x[place]
            assert not math.isfinite(sum_of_squares(x))
            x[place] = value


def test_sum_of_squares_of_finite_values_is_finite():
    for dtype in (np.float16, np.float32):
        largest = float(np.finfo(dtype).max)
        assert sum_of_squares(np.full(2 * BLOCK, largest, dtype)) == pytest.approx(2 * BLOCK * largest**2)


@properties
@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e3))
def test_clipping(norm, limit):
    assert norm * clipping_factor(norm, limit) == pytest.approx(min(norm, limit))
    assert clipping_factor(norm, 0) == 1


@pytest.mark.parametrize("norm", [2.0**exponent for exponent in range(-40, 41, 8)])
def test_clipping_is_exact_for_small_norms_and_large_ones(norm):
    """PyTorch divides by norm + 1e-6; the papers do not."""
    for limit in (norm / 2, norm / 2**20):
        assert norm * clipping_factor(norm, limit) == limit
    assert clipping_factor(norm, norm) == 1
