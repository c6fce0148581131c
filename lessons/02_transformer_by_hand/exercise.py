"""Exercise 02: the gradients of a transformer, by hand.

Fill in the seven functions; `pytest lessons/02_transformer_by_hand` says how many points they earn. You need only
NumPy: the package's own operations, tape and optimizers (minidist.nn.ops, tensor and optim, and everything built on
them) cannot be imported here, because they are the answer.

dy, dx, dw ... are gradients: the derivative of the loss with respect to each number of y, x, w, in an array of the same
shape. The functions return new arrays, and do not change their arguments: other steps need them, too.
Arrays may be large, such as (200, 300): moving one number after the other takes too long.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray


# ---- first part: what the notebook's gaps have prepared --------------------------------------------------------------


def walk_back(steps: Sequence[Any], number: int, gradient: Array) -> dict[int, Array]:
    """Go through a tape backwards, from the gradient of one value to the gradients of all values that no step made.

    steps      in the order in which they ran. Each has
                   step.output     the number of the value that it made
                   step.inputs     the numbers of the values that it took, perhaps one of them twice
                   step.backward   a function: step.backward(dy, *step.kept) returns a sequence with a gradient for each
                                   input, in their order, or None for an input that has none
                   step.kept       the arrays that this function needs
    number     of the value to start from (the loss); `gradient` is its gradient

    Return {number: gradient}. A value that is used several times gets the sum. Skip steps on which the loss does not
    depend. Two inputs may get the same array, so do not write into a gradient that a step returned.
    """
    raise NotImplementedError


def linear_backward(dy: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    """(dx, dw, db) for y = x wᵀ + b: x (..., in), w (out, in), b (out,), y and dy (..., out).

    The dots stand for any number of axes: x may be (in,), (rows, in) or (B, T, in).
    """
    raise NotImplementedError


def cross_entropy_backward(dloss: float, prob: Array, targets: Array) -> Array:
    """dlogits (..., V) for the loss, the mean over all positions of -log prob[target]; prob = softmax(logits).

    prob (..., V); targets (...) integers, one for each position. dloss: the derivative with respect to this loss, 1 if
    the loss is the last step.
    """
    raise NotImplementedError


# ---- second part -----------------------------------------------------------------------------------------------------


def layer_norm_backward(dy: Array, x: Array, gain: Array, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    """(dx, dgain, dbias) for y = n · gain + bias, n = (x - mean) / √(var + eps), over the last axis.

    x and dy (..., C), gain and bias (C,). mean and var belong to each row of x; var is the mean of (x - mean)².
    """
    raise NotImplementedError


def values_backward(dy: Array, prob: Array, v: Array) -> tuple[Array, Array]:
    """(dprob, dv) for y = prob v, the last product of attention: prob (B, H, T, T), v and y (B, H, T, D)."""
    raise NotImplementedError


def softmax_backward(dprob: Array, prob: Array) -> Array:
    """dscores for prob = softmax(scores) over the last axis; all have the same shape (..., T).

    Where the mask hides a key, prob is 0, and dscores must be 0, too.
    """
    raise NotImplementedError


def adamw(
    p: Array, g: Array, m: Array, v: Array, step: int,
    lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.95, eps: float = 1e-8, weight_decay: float = 0.0,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """One update of the parameters p with the gradient g: the new (p, m, v), as new arrays. step counts from 1.

        m ← β1 m + (1 - β1) g          m̂ = m / (1 - β1ᵗ)
        v ← β2 v + (1 - β2) g²         v̂ = v / (1 - β2ᵗ)          t = step
        p ← p - lr · (m̂ / (√v̂ + ε) + λ p)                         λ = weight_decay

    (Kingma & Ba 2015, algorithm 1; Loshchilov & Hutter 2019, algorithm 2: the decay is not part of the gradient.)
    """
    raise NotImplementedError
