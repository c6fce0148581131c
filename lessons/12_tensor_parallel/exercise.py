"""Exercise 12: t ranks share every matrix. All of them work on the same sequences, each with its part.

Fill in the ten functions; `pytest lessons/12_tensor_parallel` says how many points they earn. None needs another.

A layer is y = x w + bias, with x (B, T, in), w (in, out) and bias (out,): B sequences of T positions. The loss is the
same number on all ranks, and dy is its slope by each number of y. Where an array is called *whole*, all ranks hold the
same one. What comes in does not change, and t divides whatever is cut.

Send with `minidist.ring`, or with your own functions of lesson 04: they take flat arrays, (S,).
"""

from collections.abc import Sequence

import numpy as np

from minidist import ring  # noqa: F401
from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- first part: a matrix that t ranks share -------------------------------------------------------------------------


def column_part(w: Array, sections: Sequence[int], t: int, rank: int) -> Array:
    """Which columns of w (in, out) this rank has: (in, out/t), a copy.

    sections: how many columns each of the matrices has that lie beside one another in w; they add up to `out`. [out] is
    one matrix, [h, h, h] are Q, K and V. Of each section cut t equal parts, and take number `rank` of each.
    """
    raise NotImplementedError


def column_forward(comm: Comm, x: Array, w: Array, bias: Array) -> Array:
    """x (B, T, in) whole; w (in, out/t) and bias (out/t,) are this rank's columns: this rank's y (B, T, out/t)."""
    raise NotImplementedError


def column_backward(comm: Comm, x: Array, w: Array, dy: Array) -> tuple[Array, Array, Array]:
    """(dx, dw, dbias), from this rank's dy (B, T, out/t).

    dx (B, T, in)      whole: the slope of the loss by x, which all ranks have used
    dw, dbias          those of this rank's columns
    """
    raise NotImplementedError


def row_forward(comm: Comm, x: Array, w: Array, bias: Array) -> Array:
    """x (B, T, in/t) is this rank's part, as a column_forward makes it; w (in/t, out) are its rows; bias (out,) whole.

    Returns y (B, T, out), whole.
    """
    raise NotImplementedError


def row_backward(comm: Comm, x: Array, w: Array, dy: Array) -> tuple[Array, Array, Array]:
    """(dx, dw, dbias), from dy (B, T, out), which is whole.

    dx (B, T, in/t), dw (in/t, out)    this rank's
    dbias (out,)                       whole: all ranks update their copy of the bias alike
    """
    raise NotImplementedError


# ---- second part: one mask or two, and a loss without its logits -----------------------------------------------------


def dropout_mask(key: Sequence[int], shape: tuple[int, ...], p: float, part: tuple[int, int] = (0, 1)) -> Array:
    """A boolean array of this shape for dropout: false with probability p, each element for itself.

    key: integers >= 0, such as (seed, step, layer). The same key gives the same mask whenever one asks, on every rank.
    part: (i, n), where an array of this shape is the i-th of n equal pieces of a longer one, cut along its first axis.
    Its mask is then the i-th piece of the longer one's: n pieces behind one another are that of (n * shape[0], ...).
    """
    raise NotImplementedError


def loss_forward(comm: Comm, logits: Array, targets: Array) -> tuple[float, Array]:
    """(loss, prob): the mean over the positions of -log of the target's probability; this rank's part of the softmax.

    logits (n, V/t)    this rank's columns, V/t * rank and those that follow; n positions
    targets (n,)       integers from 0 to V - 1, whole
    prob (n, V/t)      the softmax over all V entries, of which these are this rank's

    The logits stay where they are: three rows of n numbers are summed, or their largest found, over the ranks. ring's
    all_reduce(comm, x, op=np.maximum) has the largest. Logits may be as large as they like.
    """
    raise NotImplementedError


def loss_backward(comm: Comm, prob: Array, targets: Array) -> Array:
    """The slope of the loss by this rank's logits (n, V/t), from its prob (n, V/t)."""
    raise NotImplementedError


# ---- as a bonus: sequence parallelism --------------------------------------------------------------------------------


def scatter_sum(comm: Comm, y: Array) -> Array:
    """The sum over the ranks of y (B, T, C), of which this rank gets its positions: T/t * rank and those that follow.

    (B, T/t, C). Every rank sends (t-1)/t of y, half of what an all-reduce sends.
    """
    raise NotImplementedError


def gather_whole(comm: Comm, x: Array) -> Array:
    """The way back: from every rank's positions x (B, T/t, C) all of them, (B, T, C), whole. As many bytes as above."""
    raise NotImplementedError
