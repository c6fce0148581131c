"""Products of matrices, and how many floating-point operations they take: a count that costs nothing unless it is used.

Model FLOPs, as papers count them, are those of matrix products: one multiplication and one addition for each element of
either matrix and each row or column of the other (Korthikanti et al. 2022, appendix A).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from minidist.nn.tensor import Array


class Flops:
    """The number of operations so far."""

    count = 0


_counting: ContextVar[tuple[Flops, ...]] = ContextVar("counting", default=())  # each rank of a process has its own


@contextmanager
def flops() -> Iterator[Flops]:
    """Count the operations of every product of this rank inside the block."""
    counted = Flops()
    token = _counting.set((*_counting.get(), counted))
    try:
        yield counted
    finally:
        _counting.reset(token)


def product(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b for a (..., m, k) and b (..., k, n)."""
    if counting := _counting.get():
        number = (
            2 * math.prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2])) * a.shape[-2] * a.shape[-1] * b.shape[-1]
        )
        for counted in counting:
            counted.count += number
    return np.matmul(a, b, out=out)
