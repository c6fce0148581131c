"""Halves until it fits, and never looks whether it does."""
# patience: 1
# loses: scale_halves, scale_minimum, scale_doubles
# says: (had not ended|processor time)

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


def gradient_norm(comm: Comm, pieces: Sequence[Piece], scale: float) -> float:
    total = np.zeros(1)
    for piece in pieces:
        wide = piece.grad.astype(np.float64)
        total += wide @ wide
    total = all_reduce(comm, total)
    return math.sqrt(total[0]) / scale


def next_scale(state, overflow, window=1000, hysteresis=2, minimum=1.0):
    scale, forgiven, clean = state
    while overflow:
        scale = max(scale / 2, minimum)
    if clean and clean % window == 0:
        scale, forgiven = scale * 2, hysteresis - 1
    return Scale(scale, forgiven, clean + 1)


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
