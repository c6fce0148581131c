"""The package's own loss scale, under another name."""
# keeps: nothing
# says: While imports_the_package.py was being imported, .*(?s:.*)minidist.nn.precision is not here: it has what this lesson asks you to write

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minidist.mpi.comm import Comm
from minidist.nn.precision import LossScale
from minidist.ring import all_reduce

Array = np.ndarray


class Piece(NamedTuple):
    param: Array
    grad: Array
    master: Array


class Scale(NamedTuple):
    scale: float = 65536.0
    forgiven: int = 1
    clean: int = 0


def narrow(gradient: Array, scale: float) -> Array:
    scaled = gradient * np.float32(scale)
    return scaled.astype(np.float16)


def widen(stored: Array, scale: float) -> Array:
    wide = stored.astype(np.float32)
    return wide / np.float32(scale)


def update(param: Array, master: Array, change: Array) -> None:
    master += change
    param[:] = master


def gradient_norm(comm: Comm, pieces: Sequence[Piece], scale: float) -> float:
    total = np.zeros(1)
    for piece in pieces:
        wide = piece.grad.astype(np.float64)
        total += wide @ wide
    total = all_reduce(comm, total)
    return math.sqrt(total[0]) / scale


def next_scale(state, overflow, window=1000, hysteresis=2, minimum=1.0):
    rule = LossScale(state.scale, window, hysteresis, minimum)
    rule.forgiven_left, rule.step = state.forgiven, state.clean
    rule.update(overflow)
    return Scale(rule.scale, rule.forgiven_left, 0 if overflow else state.clean + 1)


def apply_gradients(
    comm: Comm, pieces: Sequence[Piece], state: Scale, clip: float, optimizer: Callable[[int, Array], Array]
) -> Scale:
    norm = gradient_norm(comm, pieces, state.scale)
    overflow = not math.isfinite(norm)
    if not overflow:
        factor = 1.0
        if clip > 0 and norm > clip:
            factor = clip / norm
        for i, piece in enumerate(pieces):
            gradient = widen(piece.grad, state.scale)
            gradient *= factor
            update(piece.param, piece.master, optimizer(i, gradient))
    for piece in pieces:
        piece.grad[:] = 0
    return next_scale(state, overflow)
