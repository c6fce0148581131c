"""Optimizers over flat buffers, the learning rate's schedule, and the gradient's norm.

An optimizer sees a one-dimensional piece of the parameters, the piece that the rank owns: the whole, or a shard that
may begin and end in the middle of a matrix. It works through the piece in blocks that stay in the cache.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np

from minidist import former_names
from minidist.nn.ops import BLOCK, blocks
from minidist.nn.tensor import Array


class Optimizer(Protocol):
    """`moments` arrays of state for each parameter, and the rule that updates them all."""

    @property
    def moments(self) -> int: ...

    def update(
        self, param: Array, grad: Array, state: list[Array],
        *, scale: float, lr: float, step: int, decayed: int, room: Array | None = None,
    ) -> None:  # fmt: skip
        """Update `param` and `state` in place. All arrays are one-dimensional and of one size.

        grad may be narrower (of 2 bytes); it is widened and multiplied by `scale` (the loss scale undone, and clipping)
        block by block. step counts from 1. Weight decay applies to the first `decayed` elements. room: scratch, a block
        of param's dtype; None: it is made.
        """
        ...


@dataclass(frozen=True)
class AdamW:
    """Adam (Kingma & Ba 2015) with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2)."""

    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    moments = 2  # first and second moment: 4 + 4 bytes per parameter in fp32

    def update(
        self, param: Array, grad: Array, state: list[Array],
        *, scale: float, lr: float, step: int, decayed: int, room: Array | None = None,
    ) -> None:  # fmt: skip
        room = room_for(param) if room is None else room
        root = math.sqrt(1 - self.beta2**step)  # bias corrections, taken out of the arrays: m/(1-β1ᵗ), v/(1-β2ᵗ)
        step_size, eps = lr * root / (1 - self.beta1**step), self.eps * root
        first, second = (1 - self.beta1) * scale, (1 - self.beta2) * scale**2
        for start, (p, g, m, v) in zip(count(0, BLOCK), blocks(param, grad, *state), strict=False):
            p[: max(0, decayed - start)] *= 1 - lr * self.weight_decay
            m *= self.beta1
            update = np.multiply(g, first, out=room[: p.size], dtype=p.dtype)
            m += update  # m = β1 m + (1-β1) g
            v *= self.beta2
            np.multiply(g, g, out=update, dtype=p.dtype)
            update *= second
            v += update  # v = β2 v + (1-β2) g²
            np.sqrt(v, out=update)
            update += eps
            np.divide(m, update, out=update)
            update *= step_size
            p -= update  # p = p - lr m̂/(√v̂ + ε)


@dataclass(frozen=True)
class SGD:
    """Gradient descent, with optional momentum: v = μ v + g, p = p - lr v."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def moments(self) -> int:
        """Arrays of state: the velocity."""
        return 1 if self.momentum else 0

    def update(
        self, param: Array, grad: Array, state: list[Array],
        *, scale: float, lr: float, step: int, decayed: int, room: Array | None = None,
    ) -> None:  # fmt: skip
        room = room_for(param) if room is None else room
        param[:decayed] *= 1 - lr * self.weight_decay
        for p, g, *velocity in blocks(param, grad, *state):
            g = np.multiply(g, scale, out=room[: p.size], dtype=p.dtype)
            for v in velocity:  # one, or none
                v *= self.momentum
                v += g
                g = v
            p -= np.multiply(g, lr, out=room[: p.size])


def room_for(param: Array) -> Array:
    """Scratch for an optimizer's update of an array: one block."""
    return np.empty(min(BLOCK, param.size), param.dtype)


class InThreads:
    """An optimizer on several cores: each thread updates a part of the arrays, with scratch of its own. The
    result is the same, because no element's arithmetic changes. NumPy releases Python's lock while it computes."""

    def __init__(self, optimizer: Optimizer, rooms: Sequence[Array]) -> None:
        self.optimizer, self.rooms, self.moments = optimizer, rooms, optimizer.moments
        from concurrent.futures import ThreadPoolExecutor  # and logging: few ranks have threads

        self.threads = ThreadPoolExecutor(len(rooms), "update")

    def update(
        self, param: Array, grad: Array, state: list[Array],
        *, scale: float, lr: float, step: int, decayed: int, room: Array | None = None,
    ) -> None:  # fmt: skip
        size = -(-param.size // len(self.rooms) // BLOCK) * BLOCK  # of a part: whole blocks

        @np.errstate(over="ignore", invalid="ignore")  # a thread does not inherit this from its starter
        def update_part(start: int, room: Array) -> None:
            p, g, *moments = (array[start : start + size] for array in (param, grad, *state))
            within = max(0, decayed - start)
            self.optimizer.update(p, g, moments, scale=scale, lr=lr, step=step, decayed=within, room=room)

        starts = range(0, param.size, size) if param.size else ()
        first, *others = [*zip(starts, self.rooms, strict=False)] or [(0, self.rooms[0])]
        under_way = [self.threads.submit(update_part, *other) for other in others]
        update_part(*first)
        for future in under_way:
            future.result()


@dataclass(frozen=True)
class CosineSchedule:
    """Linear warm-up to `peak` over `warmup` updates, then half a cosine down to `floor` at update `total`."""

    peak: float
    floor: float
    warmup: int
    total: int

    def __call__(self, update: int) -> float:
        """The learning rate of an update; updates count from 0."""
        if update < self.warmup:
            return self.peak * (update + 1) / (self.warmup + 1)
        done = min(1.0, (update - self.warmup) / max(1, self.total - self.warmup))
        return self.floor + 0.5 * (1 + math.cos(math.pi * done)) * (self.peak - self.floor)


def sum_of_squares(x: Array) -> float:
    """Σ x², in float64. For a float16 or float32 x it is not finite if, and only if, an element of x is not."""
    total = 0.0
    for (block,) in blocks(x):
        wide = block.astype(np.float64)
        total += float(wide @ wide)
    return total


def clipping_factor(norm: float, limit: float) -> float:
    """The factor that makes the norm of gradients at most `limit` (Pascanu et al. 2013); 0 means no limit."""
    return 1.0 if limit == 0 or norm <= limit else limit / norm


__getattr__ = former_names(__name__)
