"""Exercise 12: t ranks share every matrix. All of them work on the same sequences, each with its part.

Fill in the ten functions; `pytest lessons/12_tensor_parallel` says how many points they earn. None needs another.

A layer is y = x w + bias, with x (B, T, in), w (in, out) and bias (out,): B sequences of T positions. The loss is the
same number on all ranks, and dy is its derivative with respect to each number of y. An array is called *whole* if all
ranks hold the same copy of it. Do not change the arguments. Every size that is sharded is a multiple of t.

Send with `minidist.ring`, or with your own functions of lesson 04: they take flat arrays, (S,).
"""

from collections.abc import Sequence

import numpy as np

from minidist import ring  # noqa: F401
from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- first part: a matrix that t ranks share -------------------------------------------------------------------------


def column_part(w: Array, sections: Sequence[int], t: int, rank: int) -> Array:
    """This rank's columns of w (in, out): (in, out/t), a copy.

    sections: w consists of several matrices side by side; these are their numbers of columns, which add up to `out`.
    [out] is one matrix, [h, h, h] are Q, K and V. Cut each section into t equal parts, and take part `rank` of each.
    """
    raise NotImplementedError


def column_forward(comm: Comm, x: Array, w: Array, bias: Array) -> Array:
    """This rank's y (B, T, out/t). x (B, T, in) is whole; w (in, out/t) and bias (out/t,) are this rank's columns."""
    raise NotImplementedError


def column_backward(comm: Comm, x: Array, w: Array, dy: Array) -> tuple[Array, Array, Array]:
    """(dx, dw, dbias), from this rank's dy (B, T, out/t).

    dx (B, T, in)      whole: the derivative of the loss with respect to x, which all ranks have used
    dw, dbias          those of this rank's columns
    """
    raise NotImplementedError


def row_forward(comm: Comm, x: Array, w: Array, bias: Array) -> Array:
    """y (B, T, out), whole.

    x (B, T, in/t) is this rank's part, as column_forward returns it; w (in/t, out) holds its rows; bias (out,) is
    whole.
    """
    raise NotImplementedError


def row_backward(comm: Comm, x: Array, w: Array, dy: Array) -> tuple[Array, Array, Array]:
    """(dx, dw, dbias), from dy (B, T, out), which is whole.

    dx (B, T, in/t), dw (in/t, out)    this rank's
    dbias (out,)                       whole: all ranks update their copies of the bias in the same way
    """
    raise NotImplementedError


# ---- second part: one mask or two, and a loss without its logits -----------------------------------------------------


def dropout_mask(key: Sequence[int], shape: tuple[int, ...], p: float, part: tuple[int, int] = (0, 1)) -> Array:
    """A boolean array of this shape for dropout: false with probability p, independently for each element.

    key: integers >= 0, such as (seed, step, layer). The same key always gives the same mask, on every rank.
    part: (i, n): the array is the i-th of n equal pieces of a longer one, cut along its first axis. Then its mask is
    the i-th piece of the longer array's mask: all n pieces, one after another, are the mask of (n * shape[0], ...).
    """
    raise NotImplementedError


def loss_forward(comm: Comm, logits: Array, targets: Array) -> tuple[float, Array]:
    """(loss, prob): the mean over the positions of -log of the target's probability; this rank's part of the softmax.

    logits (n, V/t)    this rank's columns, from V/t * rank on; n positions
    targets (n,)       integers from 0 to V - 1, whole
    prob (n, V/t)      this rank's columns of the softmax over all V entries

    Do not send the logits. Three rows of n numbers go over the ranks: two are summed, and of one the maximum is taken,
    by ring.all_reduce(comm, x, op=np.maximum). Logits may be arbitrarily large.
    """
    raise NotImplementedError


def loss_backward(comm: Comm, prob: Array, targets: Array) -> Array:
    """The derivative of the loss with respect to this rank's logits (n, V/t), from its prob (n, V/t)."""
    raise NotImplementedError


# ---- as a bonus: sequence parallelism --------------------------------------------------------------------------------


def scatter_sum(comm: Comm, y: Array) -> Array:
    """This rank's positions, T/t * rank to T/t * (rank + 1) - 1, of the sum over the ranks of y (B, T, C).

    Returns (B, T/t, C). Every rank sends (t-1)/t of y, half as much as in an all-reduce.
    """
    raise NotImplementedError


def gather_whole(comm: Comm, x: Array) -> Array:
    """The way back: all positions (B, T, C), whole, from each rank's positions x (B, T/t, C). As many bytes."""
    raise NotImplementedError
