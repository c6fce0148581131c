"""Puts zeros where a number is not finite, and goes on."""
# loses: step_skip, step_scale
# says: has changed master of piece

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from minidist.mpi.comm import Comm
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


def next_scale(state: Scale, overflow: bool, window: int = 1000, hysteresis: int = 2, minimum: float = 1.0) -> Scale:
    if overflow and state.forgiven > 0:
        return state._replace(forgiven=state.forgiven - 1, clean=0)
    if overflow:
        if state.scale == minimum:
            raise OverflowError("the gradients are not finite for another reason")
        return state._replace(scale=max(state.scale / 2, minimum), clean=0)
    if state.clean > 0 and state.clean % window == 0:
        state = state._replace(scale=state.scale * 2, forgiven=hysteresis - 1)
    return state._replace(clean=state.clean + 1)


def apply_gradients(comm, pieces, state, clip, optimizer):
    for piece in pieces:
        piece.grad[~np.isfinite(piece.grad)] = 0
    norm = gradient_norm(comm, pieces, state.scale)
    factor = clip / norm if clip and norm > clip else 1.0
    for i, piece in enumerate(pieces):
        update(piece.param, piece.master, optimizer(i, factor * widen(piece.grad, state.scale)))
        piece.grad.fill(0)
    return next_scale(state, False)
