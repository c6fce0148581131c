"""Prints what it finds, and returns nothing."""
# keeps: nothing
# says: walk_back for one step: it returned None, not a dictionary
# says: it returned None. Return 3 arrays: dx, dw, db

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
    print(slopes)


def linear_backward(dy: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    dx = dy @ w
    dy, x = dy.reshape(-1, w.shape[0]), x.reshape(-1, w.shape[1])
    dw = dy.T @ x
    db = dy.sum(axis=0)
    print(dx, dw, db)


def cross_entropy_backward(dloss: float, prob: Array, targets: Array) -> Array:
    hot = np.eye(prob.shape[-1])[targets]
    dlogits = prob - hot
    print(dlogits * dloss / targets.size)


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
    print(dx, dgain, dbias)


def values_backward(dy: Array, prob: Array, v: Array) -> tuple[Array, Array]:
    dprob = np.einsum("bhqd,bhkd->bhqk", dy, v)
    dv = np.einsum("bhqk,bhqd->bhkd", prob, dy)
    print(dprob, dv)


def softmax_backward(dprob: Array, prob: Array) -> Array:
    weighted = (prob * dprob).sum(axis=-1, keepdims=True)
    print(prob * (dprob - weighted))


def adamw(p, g, m, v, step, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    p = p - lr * m_hat / (np.sqrt(v_hat) + eps) - lr * weight_decay * p
    print(p, m, v)
