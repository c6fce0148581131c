"""AdamW is the package's, by way of its engine; everything else is written."""
# loses: adamw_moments, adamw_update, adamw_bias, adamw_decay
# says: (?s)adamw for step 1, it failed:.*minidist.nn.(ops|tensor|optim) is not here: it has what this lesson asks you to write

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


def linear_backward(dy: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    dx = dy @ w
    dy, x = dy.reshape(-1, w.shape[0]), x.reshape(-1, w.shape[1])
    dw = dy.T @ x
    db = dy.sum(axis=0)
    return dx, dw, db


def cross_entropy_backward(dloss: float, prob: Array, targets: Array) -> Array:
    hot = np.eye(prob.shape[-1])[targets]
    dlogits = prob - hot
    return dlogits * dloss / targets.size


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
    from minidist.engine import AdamW

    p, m, v = p.copy(), m.copy(), v.copy()
    AdamW(beta1, beta2, eps, weight_decay).update(p, g, [m, v], scale=1.0, lr=lr, step=step, decayed=p.size)
    return p, m, v
