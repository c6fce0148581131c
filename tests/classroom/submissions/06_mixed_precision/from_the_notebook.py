"""The notebook's gaps under the names that the exercise asks for."""
# loses: norm, scale_halves, scale_minimum, scale_doubles, scale_afresh
# says: That is the norm of its own pieces

import math
from collections.abc import Callable, Sequence
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


def anybody(comm, mine):
    return bool(all_reduce(comm, np.array([float(mine)]))[0])


def gradient_norm(comm, pieces, scale):
    mine = math.sqrt(sum(float((piece.grad.astype(np.float64) ** 2).sum()) for piece in pieces)) / scale
    return math.inf if anybody(comm, not math.isfinite(mine)) else mine


def halve_or_double(scale, overflow, clean):
    if overflow:
        return scale / 2
    return scale * 2 if clean and clean % 10 == 0 else scale


def next_scale(state, overflow, window=1000, hysteresis=2, minimum=1.0):
    scale = halve_or_double(state.scale, overflow, state.clean)
    return Scale(scale, state.forgiven, 0 if overflow else state.clean + 1)


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
