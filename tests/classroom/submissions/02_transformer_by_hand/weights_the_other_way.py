"""Thinks of w as (in, out), and of the loss as a sum."""
# loses: linear_dw, linear_axes, cross_entropy_factor
# says: dw has the shape \(4, 2\); \(2, 4\) is wanted. Is it transposed\?
# says: dlogits is 6 times the slope

from collections.abc import Sequence
from typing import Any

import numpy as np

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
    return dy @ w, x.swapaxes(-1, -2) @ dy, dy.sum(0)


def cross_entropy_backward(dloss, prob, targets):
    return dloss * (prob - np.eye(prob.shape[-1])[targets])


def layer_norm_backward(dy: Array, x: Array, gain: Array, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    mean = x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    n = (x - mean) * rstd
    rows = tuple(range(x.ndim - 1))
    dgain = (dy * n).sum(axis=rows)
    dbias = dy.sum(axis=rows)
    dn = dy * gain
    shift = dn.mean(axis=-1, keepdims=True)
    stretch = n * (dn * n).mean(axis=-1, keepdims=True)
    dx = (dn - shift - stretch) * rstd
    return dx, dgain, dbias


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
