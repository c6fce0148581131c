"""The first part alone."""
# keeps: walk_back, walk_back_twice, walk_back_none, walk_back_shared, linear_dx, linear_dw, linear_db, linear_axes, cross_entropy, cross_entropy_factor
# says: half_finished.py:\d+ in softmax_backward is not written yet: it raises NotImplementedError

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
    raise NotImplementedError


def values_backward(dy: Array, prob: Array, v: Array) -> tuple[Array, Array]:
    raise NotImplementedError


def softmax_backward(dprob: Array, prob: Array) -> Array:
    raise NotImplementedError


def adamw(p, g, m, v, step, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0):
    raise NotImplementedError
