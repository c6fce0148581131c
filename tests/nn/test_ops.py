"""Every operation against its definition, and its gradient against central finite differences in float64."""

from functools import partial

import numpy as np
import pytest

from minidist.nn import ops
from minidist.nn.attend import ProbabilityDropout, Span, keys_first
from minidist.nn.tensor import Parameter, Tape, Tensor

RNG = np.random.default_rng(0)
B, T = 2, 5
TOKENS = np.array([[3, 0, 3, 3, 6], [6, 1, 3, 0, 0]])  # of 7: some come again, some never
TARGETS = RNG.integers(0, 11, (B, T))
KEPT = RNG.random((B, T, 7)) > 0.3
THETA = 50.0
AT = np.arange(T)
EPS, P = 1e-5, 0.25


def attention_mask(heads, batch=B, length=T):
    return np.random.default_rng(heads).random((batch, heads, length, length)) > P


def tiled_dropout(heads, kv_heads, *shape):
    return ProbabilityDropout(keys_first(attention_mask(heads, *shape), kv_heads), P)


# ---- what each operation is, in the plainest NumPy -------------------------------------------------------------------


def true_gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def true_swiglu(x):
    gate, up = np.split(x, 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


def true_layer_norm(x, gain, bias=0.0):
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + EPS) * gain + bias


def true_rms_norm(x, gain):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * gain


def true_rotary(x, at=AT):
    """Three of five heads of 4: (first half) + i (second half), times e^(i angle)."""
    y, angles = x.copy(), at[:, None] * THETA ** -np.array([0, 1 / 2])  # (T, D/2)
    for head in range(3):
        part = x[..., 4 * head : 4 * head + 4]
        turned = (part[..., :2] + 1j * part[..., 2:]) * np.exp(1j * angles)
        y[..., 4 * head : 4 * head + 4] = np.concatenate([turned.real, turned.imag], axis=-1)
    return y


def true_attention(qkv, heads, kv_heads=None, mask=None, p=0.0):
    """Head by head and position by position."""
    kv_heads = kv_heads or heads
    batch, length, columns = qkv.shape
    depth = columns // (heads + 2 * kv_heads)
    y = np.zeros((batch, length, heads * depth))
    for b, h, t in np.ndindex(batch, heads, length):
        kv = h // (heads // kv_heads)
        q = qkv[b, t, h * depth :][:depth]
        k = qkv[b, : t + 1, (heads + kv) * depth :][:, :depth]
        v = qkv[b, : t + 1, (heads + kv_heads + kv) * depth :][:, :depth]
        weights = np.exp(k @ q / np.sqrt(depth))
        weights /= weights.sum()
        if mask is not None:
            weights = weights * mask[b, h, t, : t + 1] / (1 - p)
        y[b, t, h * depth : (h + 1) * depth] = weights @ v
    return y


def true_cross_entropy(logits):
    prob = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    return -np.mean([np.log(prob[b, t, TARGETS[b, t]]) for b, t in np.ndindex(B, T)])


# name: the operation, its definition, the shape of x (or x), the shapes of its parameters
CASES = {
    "linear": (ops.linear, lambda x, w, b: np.einsum("bti,oi->bto", x, w) + b, (B, T, 7), [(11, 7), (11,)]),
    "linear without bias": (ops.linear, lambda x, w: np.einsum("bti,oi->bto", x, w), (B, T, 7), [(11, 7)]),
    "linear of one row": (ops.linear, lambda x, w, b: np.einsum("bti,oi->bto", x, w) + b, (1, 1, 7), [(3, 7), (3,)]),
    "embedding": (ops.embedding, lambda t, w: np.eye(7)[t] @ w, TOKENS, [(7, 3)]),
    "add_positions": (lambda x, w: ops.add_positions(x, w, Span(T)), lambda x, w: x + w, (B, T, 7), [(T, 7)]),
    "add_positions, shorter than the context": (
        lambda x, w: ops.add_positions(x, w, Span(T)),
        lambda x, w: x + w[:T],
        (B, T, 7),
        [(T + 3, 7)],
    ),
    "add_positions, some of them": (
        lambda x, w: ops.add_positions(x, w, Span(2 * T, 2, 0, "zigzag")),
        lambda x, w: x + w[[0, 1, 2, 8, 9]],
        (B, T, 7),
        [(2 * T, 7)],
    ),
    "add": (lambda x: ops.add(x, ops.gelu(x)), lambda x: x + true_gelu(x), (B, T, 7), []),
    "add, other side": (lambda x: ops.add(ops.gelu(x), x), lambda x: x + true_gelu(x), (B, T, 7), []),
    "add to itself": (lambda x: ops.add(x, x), lambda x: 2 * x, (B, T, 7), []),
    "gelu": (ops.gelu, true_gelu, (B, T, 7), []),
    "swiglu": (ops.swiglu, true_swiglu, (B, T, 14), []),
    "dropout": (lambda x: ops.dropout(x, KEPT, 0.3), lambda x: np.where(KEPT, x, 0) / 0.7, (B, T, 7), []),
    "layer_norm": (ops.layer_norm, true_layer_norm, (B, T, 7), [(7,), (7,)]),
    "layer_norm without bias": (lambda x, g: ops.layer_norm(x, g, None), true_layer_norm, (B, T, 7), [(7,)]),
    "rms_norm": (ops.rms_norm, true_rms_norm, (B, T, 7), [(7,)]),
    "rotary": (lambda x: ops.rotary(x, 3, 4, Span(T), THETA), true_rotary, (B, T, 20), []),
    "rotary, every third position": (
        lambda x: ops.rotary(x, 3, 4, Span(3 * T, 3, 1, "striped"), THETA),
        lambda x: true_rotary(x, at=np.arange(1, 3 * T, 3)),
        (B, T, 20),
        [],
    ),
    "attention": (lambda x: ops.attention(x, 3), lambda x: true_attention(x, 3), (B, T, 3 * 3 * 3), []),
    "attention of one head": (lambda x: ops.attention(x, 1), lambda x: true_attention(x, 1), (B, T, 3 * 3), []),
    "attention of one position": (lambda x: ops.attention(x, 3), lambda x: true_attention(x, 3), (1, 1, 3 * 3 * 2), []),
    "attention with dropout": (
        lambda x: ops.attention(x, 3, mask=attention_mask(3), p=P),
        lambda x: true_attention(x, 3, mask=attention_mask(3), p=P),
        (B, T, 3 * 3 * 2),
        [],
    ),
    "attention, grouped": (
        lambda x: ops.attention(x, 4, 2),
        lambda x: true_attention(x, 4, 2),
        (B, T, (4 + 4) * 3),
        [],
    ),
    "attention, grouped, with dropout": (
        lambda x: ops.attention(x, 4, 2, mask=attention_mask(4), p=P),
        lambda x: true_attention(x, 4, 2, mask=attention_mask(4), p=P),
        (B, T, (4 + 4) * 3),
        [],
    ),
    "attention, long": (  # queries are taken in blocks of 64 positions
        lambda x: ops.attention(x, 2, 1, mask=attention_mask(2, 1, 131), p=P),
        lambda x: true_attention(x, 2, 1, mask=attention_mask(2, 1, 131), p=P),
        (1, 131, 2 + 2),
        [],
    ),
    "attention, long, without dropout": (
        lambda x: ops.attention(x, 2, 2),
        lambda x: true_attention(x, 2, 2),
        (2, 67, 3 * 2),
        [],
    ),
    "attention in tiles": (lambda x: ops.tiled_attention(x, 3, 3), lambda x: true_attention(x, 3), (B, T, 3 * 9), []),
    "attention in tiles, grouped, with dropout": (
        lambda x: ops.tiled_attention(x, 4, 2, partial(tiled_dropout, 4, 2)),
        lambda x: true_attention(x, 4, 2, mask=attention_mask(4), p=P),
        (B, T, (4 + 4) * 3),
        [],
    ),
    "attention in tiles, long": (
        lambda x: ops.tiled_attention(x, 2, 1, partial(tiled_dropout, 2, 1, 1, 131)),
        lambda x: true_attention(x, 2, 1, mask=attention_mask(2, 1, 131), p=P),
        (1, 131, 2 + 2),
        [],
    ),
    "cross_entropy": (lambda x: ops.cross_entropy(x, TARGETS), true_cross_entropy, (B, T, 11), []),
}
every_operation = pytest.mark.parametrize("name", CASES)


def build(name, dtype=np.float64):
    """A case's operation and definition, its input, and its parameters with room for a gradient."""
    operation, truth, x, shapes = CASES[name]
    rng = np.random.default_rng(1)
    if isinstance(x, tuple):
        x = rng.standard_normal(x).astype(dtype)
    parameters = [Parameter(f"p{i}", shape) for i, shape in enumerate(shapes)]
    for parameter in parameters:
        values = rng.standard_normal(parameter.shape).astype(dtype)
        parameter.bind(values, np.full_like(values, np.nan))  # nan: whatever is not written shows
    return operation, truth, x, parameters


def run(operation, x, parameters):
    """Forward and backward of Σ y·dy for a random dy; returns y, dy, and the gradients of x and of the parameters."""
    tape = Tape()
    y = operation(tape.tensor(x.copy()), *parameters).data
    dy = np.random.default_rng(2).standard_normal(y.shape).astype(y.dtype)
    kept = [kept.array for step in tape.steps for kept in step.kept]
    assert {array.dtype for array in kept} <= {y.dtype, np.dtype(bool), TOKENS.dtype}  # nothing wider than the result
    for array in (dy, *kept):
        array.flags.writeable = False  # a backward that writes into what it was given raises ValueError
    return y, dy, tape.backward(dy), [parameter.grad for parameter in parameters]


def differences(f, array, h=1e-5):
    """The gradient of the scalar f() with respect to `array`, element by element, by central differences."""
    gradient = np.empty_like(array)
    for i in np.ndindex(array.shape):
        value = array[i]
        array[i] = value + h
        above = f()
        array[i] = value - h
        gradient[i] = (above - f()) / (2 * h)
        array[i] = value
    return gradient


@every_operation
def test_computes_what_it_says_and_leaves_its_input_alone(name):
    operation, truth, x, parameters = build(name)
    x.flags.writeable = False
    y = operation(Tensor(x), *parameters).data
    np.testing.assert_allclose(y, truth(x, *(p.data for p in parameters)), rtol=1e-12, atol=1e-14)


@every_operation
@pytest.mark.parametrize("block", [8, ops.BLOCK])
def test_gradients_are_the_slopes(name, block, monkeypatch):
    monkeypatch.setattr(ops, "BLOCK", block)  # 8: even these small arrays are several blocks, the last one short
    operation, _, x, parameters = build(name)
    _, dy, dx, gradients = run(operation, x, parameters)

    def scalar():
        return np.sum(operation(Tensor(x), *parameters).data * dy)

    if dx is None:
        assert x is TOKENS  # the only input that has no gradient
    else:
        np.testing.assert_allclose(dx, differences(scalar, x), rtol=1e-7, atol=1e-8)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        np.testing.assert_allclose(gradient, differences(scalar, parameter.data), rtol=1e-7, atol=1e-8)


@every_operation
def test_float32_stays_float32_and_is_near(name):
    wide, narrow = (run(CASES[name][0], *build(name, dtype)[2:]) for dtype in (np.float64, np.float32))
    for expected, got in zip([wide[0], wide[2], *wide[3]], [narrow[0], narrow[2], *narrow[3]], strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_second_backward_adds_to_a_parameters_gradient():
    for name in ("linear", "embedding", "add_positions", "layer_norm", "rms_norm"):
        operation, _, x, parameters = build(name)
        _, _, _, gradients = run(operation, x, parameters)
        once = [gradient.copy() for gradient in gradients]
        run(operation, x, parameters)
        for gradient, first in zip(gradients, once, strict=True):
            np.testing.assert_array_equal(gradient, 2 * first)


def test_gelu_over_several_real_blocks():
    x = np.random.default_rng(3).standard_normal(2 * ops.BLOCK + 3)
    tape = Tape()
    np.testing.assert_allclose(ops.gelu(tape.tensor(x)).data, true_gelu(x), rtol=1e-12, atol=1e-15)
    slope = (true_gelu(x + 1e-6) - true_gelu(x - 1e-6)) / 2e-6
    np.testing.assert_allclose(tape.backward(np.ones_like(x)), slope, rtol=1e-7, atol=1e-8)


def test_large_values_do_not_overflow():
    """Logits and scores in the thousands: exp alone would be inf, and inf/inf is nan."""
    for name in ("gelu", "swiglu", "attention", "cross_entropy"):
        operation, _, x, parameters = build(name, np.float32)
        with np.errstate(all="raise", under="ignore"):
            y, _, dx, _ = run(operation, 3000 * x, parameters)
        assert np.isfinite(y).all()
        assert np.isfinite(dx).all()


def test_attention_does_not_see_the_future():
    x = np.random.default_rng(4).standard_normal((1, 7, 4 * 9))
    other = x.copy()
    other[:, 4:] += 1
    before, after = (ops.attention(Tensor(a), 4, kv_heads=None).data for a in (x, other))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.abs(before[:, 4:] - after[:, 4:]).min() > 0
