"""Calls the package's own operations, with a tape of the package's."""
# keeps: nothing
# says: While imports_the_operations.py was being imported, .*(?s:.*)minidist.nn.ops is not here: it has what this lesson asks you to write

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist.nn import ops
from minidist.nn.tensor import Parameter, Tape

Array = np.ndarray


def walk_back(steps: Sequence[Any], number: int, gradient: Array) -> dict[int, Array]:
    slopes = {number: gradient}
    for step in reversed(steps):
        if step.output not in slopes:
            continue
        dy = slopes.pop(step.output)
        gradients = step.backward(dy, *step.kept)
        for i, dx in zip(step.inputs, gradients, strict=True):
            if dx is None:
                continue
            if i in slopes:
                slopes[i] = slopes[i] + dx
            else:
                slopes[i] = dx
    return slopes


def linear_backward(dy, x, w):
    weight, bias = Parameter("w", w.shape), Parameter("b", (len(w),))
    weight.bind(w, np.zeros_like(w))
    bias.bind(np.zeros(len(w)), np.zeros(len(w)))
    tape = Tape()
    ops.linear(tape.tensor(x), weight, bias)
    dx = tape.backward(dy)
    return dx, weight.grad, bias.grad


def cross_entropy_backward(dloss: float, prob: Array, targets: Array) -> Array:
    hot = np.eye(prob.shape[-1])[targets]
    dlogits = prob - hot
    return dlogits * dloss / targets.size


def layer_norm_backward(dy, x, gain, eps=1e-5):
    weight, bias = Parameter("gain", gain.shape), Parameter("bias", gain.shape)
    weight.bind(gain, np.zeros_like(gain))
    bias.bind(np.zeros_like(gain), np.zeros_like(gain))
    tape = Tape()
    ops.layer_norm(tape.tensor(x), weight, bias, eps)
    dx = tape.backward(dy)
    return dx, weight.grad, bias.grad


def values_backward(dy: Array, prob: Array, v: Array) -> tuple[Array, Array]:
    dprob = np.einsum("bhqd,bhkd->bhqk", dy, v)
    dv = np.einsum("bhqk,bhqd->bhkd", prob, dy)
    return dprob, dv


def softmax_backward(dprob: Array, prob: Array) -> Array:
    weighted = (prob * dprob).sum(axis=-1, keepdims=True)
    return prob * (dprob - weighted)


def adamw(p, g, m, v, step, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    p = p - lr * m_hat / (np.sqrt(v_hat) + eps) - lr * weight_decay * p
    return p, m, v
