"""Lesson 02's own functions, which the notebook uses where a gap is open: look here after you have tried."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray


# ---- the gaps --------------------------------------------------------------------------------------------------------


def slope(f: Callable[[Array], float], x: Array, index: tuple[int, ...]) -> float:
    h, before = 1e-5, x[index]
    x[index] = before + h
    above = f(x)
    x[index] = before - h
    below = f(x)
    x[index] = before
    return (above - below) / (2 * h)


def product_backward(dy: Array, x: Array, w: Array) -> tuple[Array, Array]:
    return dy @ w, dy.T @ x


def run_back(steps: Sequence[Any], number: int, gradient: Array) -> dict[int, Array]:
    gradients = {number: gradient}
    for step in reversed(steps):
        dy = gradients.pop(step.output)
        for i, dx in zip(step.inputs, step.backward(dy, *step.kept), strict=True):
            gradients[i] = gradients[i] + dx if i in gradients else dx
    return gradients


def loss_slope(prob: Array, target: int) -> Array:
    dlogits = prob.copy()
    dlogits[target] -= 1
    return dlogits


# ---- the exercise ----------------------------------------------------------------------------------------------------


def walk_back(steps: Sequence[Any], number: int, gradient: Array) -> dict[int, Array]:
    gradients = {number: gradient}
    for step in reversed(steps):
        dy = gradients.pop(step.output, None)
        if dy is None:
            continue
        for i, dx in zip(step.inputs, step.backward(dy, *step.kept), strict=True):
            if dx is None:
                continue
            another = gradients.get(i)
            gradients[i] = dx if another is None else another + dx
    return gradients


def linear_backward(dy: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    rows, dy_rows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    return dy @ w, dy_rows.T @ rows, dy_rows.sum(0)


def cross_entropy_backward(dloss: float, prob: Array, targets: Array) -> Array:
    dlogits = prob.reshape(-1, prob.shape[-1]).copy()
    dlogits[np.arange(len(dlogits)), targets.reshape(-1)] -= 1
    return (dlogits * (dloss / len(dlogits))).reshape(prob.shape)


def layer_norm_backward(dy: Array, x: Array, gain: Array, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    centred = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    n, dn = centred * rstd, dy * gain
    dx = rstd * (dn - dn.mean(-1, keepdims=True) - n * (dn * n).mean(-1, keepdims=True))
    rows = tuple(range(dy.ndim - 1))
    return dx, (dy * n).sum(rows), dy.sum(rows)


def values_backward(dy: Array, prob: Array, v: Array) -> tuple[Array, Array]:
    return dy @ v.swapaxes(-1, -2), prob.swapaxes(-1, -2) @ dy


def softmax_backward(dprob: Array, prob: Array) -> Array:
    return prob * (dprob - (dprob * prob).sum(-1, keepdims=True))


def adamw(
    p: Array, g: Array, m: Array, v: Array, step: int,
    lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.95, eps: float = 1e-8, weight_decay: float = 0.0,
) -> tuple[Array, Array, Array]:  # fmt: skip
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    update = (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + eps)
    return p - lr * (update + weight_decay * p), m, v
