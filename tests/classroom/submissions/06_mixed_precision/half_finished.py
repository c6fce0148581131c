"""The first part is done."""
# keeps: narrow, widen, update_master, update_param
# says: is not written yet: it raises NotImplementedError

from typing import NamedTuple

import numpy as np

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
    raise NotImplementedError


def next_scale(state, overflow, window=1000, hysteresis=2, minimum=1.0):
    raise NotImplementedError


def apply_gradients(comm, pieces, state, clip, optimizer):
    raise NotImplementedError
