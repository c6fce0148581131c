"""Every body is empty, but that it sends zeros where something must be sent."""
# keeps: nothing

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
    return gradient


def widen(stored: Array, scale: float) -> Array:
    return stored


def update(param: Array, master: Array, change: Array) -> None:
    pass


def gradient_norm(comm: Comm, pieces: Sequence[Piece], scale: float) -> float:
    return all_reduce(comm, np.zeros(1))[0]


def next_scale(state: Scale, overflow: bool, window: int = 1000, hysteresis: int = 2, minimum: float = 1.0) -> Scale:
    return state


def apply_gradients(
    comm: Comm, pieces: Sequence[Piece], state: Scale, clip: float, optimizer: Callable[[int, Array], Array]
) -> Scale:
    for piece in pieces:
        piece.grad.fill(0)
    return state
