"""Every rank looks at its own gradients, as on one GPU."""
# loses: norm, norm_overflow, timing
# says: That is the norm of its own pieces
# says: inf on rank 2: rank 0 returned .*; inf or nan on every rank, or one skips alone

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minidist.mpi.comm import Comm

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


def gradient_norm(comm, pieces, scale):
    everything = np.concatenate([piece.grad for piece in pieces]).astype(np.float64)
    return float(np.linalg.norm(everything)) / scale


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
