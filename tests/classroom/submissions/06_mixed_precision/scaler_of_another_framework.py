"""Halves at every overflow, and counts the window from the last doubling."""
# loses: scale_halves, scale_minimum, scale_doubles, scale_afresh
# says: after step 1, an overflow: the scale is 2048; 4096 is wanted

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
    if overflow:
        return Scale(state.scale * 0.5, state.forgiven, 0)
    clean = state.clean + 1
    if clean == window:
        return Scale(state.scale * 2.0, state.forgiven, 0)
    return Scale(state.scale, state.forgiven, clean)


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
