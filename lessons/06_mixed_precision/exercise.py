"""Exercise 06: mixed precision.

Fill in the six functions; `pytest lessons/06_mixed_precision` says how many points they earn. minidist.ring is there
for what the ranks have to add up. The package's own precision, minidist.nn.precision, and all that is built on it, as
minidist.engine, cannot be imported here: it is what is asked for.

Stored and sent are float16 numbers; arithmetic is done in float32 copies of them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


class Piece(NamedTuple):
    """What a rank holds of some parameters. The arrays are changed in place."""

    param: Array  # float16: what the model computes with, and what is sent
    grad: Array  # float16: the gradient times the loss scale; of the same size
    master: Array  # float32: what is updated


class Scale(NamedTuple):
    """The loss scale, and what its rule has to remember."""

    scale: float = 65536.0
    forgiven: int = 1  # how many more overflows do not halve it
    clean: int = 0  # steps since the last overflow, or since the start, before the one that is being looked at


# ---- first part: what the notebook's gaps have prepared --------------------------------------------------------------


def narrow(gradient: Array, scale: float) -> Array:
    """A float32 gradient times the scale, as float16: a new array. Multiply first, then round."""
    raise NotImplementedError


def widen(stored: Array, scale: float) -> Array:
    """The gradient of which `stored` (float16) is `scale` times as much, as float32: a new array. Widen first."""
    raise NotImplementedError


def update(param: Array, master: Array, change: Array) -> None:
    """Add the change (float32) to the master copy, and let param (float16) be that, rounded. Both in place."""
    raise NotImplementedError


# ---- second part -----------------------------------------------------------------------------------------------------


def gradient_norm(comm: Comm, pieces: Sequence[Piece], scale: float) -> float:
    """The norm √Σg² of the whole gradient, of which each rank has other pieces, without the scale: the same number on
    every rank.

    Where a number in anybody's grad is not finite, the norm is not finite either, on every rank. Squares are made in
    float64: in float16 that of 256 is infinite already, and that of 0.0001 is zero.
    """
    raise NotImplementedError


def next_scale(state: Scale, overflow: bool, window: int = 1000, hysteresis: int = 2, minimum: float = 1.0) -> Scale:
    """The state after a step with or without an overflow: DeepSpeed's rule. A new Scale.

    Overflow:     as long as `forgiven` is not 0, it becomes 1 less, and the scale stays. Else the scale is halved, but
                  never below `minimum`. Where it is at the minimum already, and nothing is forgiven any more, raise
                  OverflowError: the gradients are not finite for another reason. `clean` becomes 0.
    No overflow:  if `clean` is a multiple of `window`, but not 0, the scale doubles, and `forgiven` is again
                  hysteresis - 1. In any case `clean` is 1 more afterwards.
    """
    raise NotImplementedError


def apply_gradients(
    comm: Comm, pieces: Sequence[Piece], state: Scale, clip: float, optimizer: Callable[[int, Array], Array]
) -> Scale:
    """The end of a training step: update this rank's pieces, or skip the step; return the next state of the scale.

    optimizer(i, gradient) is the change (float32) of piece i for its gradient (float32): without the scale, clipped. It
    remembers what it is handed: call it once for each piece, and not at all where the step is skipped.
    clip: the largest norm of the whole gradient. One that is longer is multiplied by clip / norm. 0: no clipping.

    The step is skipped by all ranks if the norm is not finite: parameters and master copies stay as they are. In any
    case all grad are zero afterwards.
    """
    raise NotImplementedError
