"""Exercise 06: mixed precision.

Fill in the six functions; `pytest lessons/06_mixed_precision` says how many points they earn. Use minidist.ring to add
up numbers over the ranks. The package's own minidist.nn.precision, and everything built on it, such as minidist.engine,
cannot be imported here, because it contains the answers.

Numbers are stored and sent as float16; arithmetic is done on float32 copies of them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


class Piece(NamedTuple):
    """A rank's arrays for some parameters. They are changed in place."""

    param: Array  # float16: the model computes with it, and it is sent
    grad: Array  # float16: the gradient times the loss scale; the same size
    master: Array  # float32: the optimizer updates it


class Scale(NamedTuple):
    """The loss scale, and what its rule has to remember."""

    scale: float = 65536.0
    forgiven: int = 1  # how many more overflows will not halve it
    clean: int = 0  # steps since the last overflow, or since the start, not counting the current step


# ---- first part: the notebook's gaps have prepared it ----------------------------------------------------------------


def narrow(gradient: Array, scale: float) -> Array:
    """A float32 gradient times the scale, as a new float16 array. Multiply first, then round."""
    raise NotImplementedError


def widen(stored: Array, scale: float) -> Array:
    """The gradient without the scale, as a new float32 array: `stored` (float16) divided by `scale`. Widen first."""
    raise NotImplementedError


def update(param: Array, master: Array, change: Array) -> None:
    """Add the change (float32) to the master copy, then write it, rounded, to param (float16). Both in place."""
    raise NotImplementedError


# ---- second part -----------------------------------------------------------------------------------------------------


def gradient_norm(comm: Comm, pieces: Sequence[Piece], scale: float) -> float:
    """The norm √Σg² of the whole gradient without the scale: the same number on every rank. Each rank holds different
    pieces of the gradient.

    If any rank's grad contains a number that is not finite, the norm is not finite on any rank. Square in float64: in
    float16 the square of 256 is infinite already, and the square of 0.0001 is zero.
    """
    raise NotImplementedError


def next_scale(state: Scale, overflow: bool, window: int = 1000, hysteresis: int = 2, minimum: float = 1.0) -> Scale:
    """The state after a step with or without an overflow: DeepSpeed's rule. A new Scale.

    Overflow:     if `forgiven` is not 0, it becomes 1 less, and the scale stays. Otherwise the scale is halved, but
                  never below `minimum`. If it is at the minimum already and nothing is forgiven any more, raise
                  OverflowError: the gradients are not finite for another reason. `clean` becomes 0.
    No overflow:  if `clean` is a multiple of `window`, but not 0, the scale doubles, and `forgiven` is again
                  hysteresis - 1. In any case `clean` grows by 1.
    """
    raise NotImplementedError


def apply_gradients(
    comm: Comm, pieces: Sequence[Piece], state: Scale, clip: float, optimizer: Callable[[int, Array], Array]
) -> Scale:
    """The end of a training step: update this rank's pieces, or skip the step; return the next state of the scale.

    optimizer(i, gradient) returns the change (float32) of piece i for its gradient (float32), which must be without the
    scale and clipped. It remembers each gradient: call it once for each piece, and not at all if the step is skipped.
    clip: the largest norm of the whole gradient. A longer gradient is multiplied by clip / norm. 0: no clipping.

    If the norm is not finite, all ranks skip the step: parameters and master copies stay as they are. Whether the step
    is skipped or not, all grad arrays are zero afterwards.
    """
    raise NotImplementedError
