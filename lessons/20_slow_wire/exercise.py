"""Exercise 20: a slow wire. Send less, remember what was not sent, and sum what was rounded.

Fill in the six functions; `pytest lessons/20_slow_wire` says how many points they earn. Arrays have the shape (S,),
unless another one is given. Results have the dtype of the input: float32 or float64. Send with `minidist.ring`:

    all_to_all(comm, x)          row i of x (N, ...) goes to rank i; row i of the result came from rank i
    all_gather(comm, x, size)    the arrays of all ranks, in order of rank: `size` elements in total
    all_reduce(comm, x)          the sum over all ranks
"""

from collections.abc import Callable, Sequence

import numpy as np

from minidist import ring  # noqa: F401
from minidist.mpi.comm import Comm

Array = np.ndarray


def packed(numbers: Array) -> Array:
    """Two whole numbers from -7 to 7 in each byte: (N, ⌈c/2⌉), uint8, of (N, c), int8."""
    nibbles = np.pad(numbers + 8, ((0, 0), (0, numbers.shape[1] % 2))).astype(np.uint8)
    return nibbles[:, ::2] << 4 | nibbles[:, 1::2]


def unpacked(pairs: Array, c: int) -> Array:
    """The inverse of packed: (N, c), int8, of (N, ⌈c/2⌉)."""
    return np.stack([pairs >> 4, pairs & 15], axis=2).reshape(len(pairs), -1)[:, :c].astype(np.int8) - 8


# ---- blocks ----------------------------------------------------------------------------------------------------------


def quantize(x: Array, block: int, most: int) -> tuple[Array, Array]:
    """(numbers, scales): x ≈ numbers · scales. Each row is cut into blocks of `block` elements, which share a scale.

    x (N, c): the last block of a row may be shorter

    numbers (N, c), int8: whole numbers from -most to most

    scales (N, ⌈c/block⌉), float32: the largest |x| of a block becomes `most` or -most; a block of zeros has the scale 0

    No element is off by more than half of its scale, except for float32's rounding of the scale itself.
    """
    raise NotImplementedError


def add_quantized(comm: Comm, x: Array, block: int) -> Array:
    """Chunk r of the ranks' sum, on rank r: (S/N,), of x (S,), where N divides S.

    Each rank's chunk r is rounded once, to whole numbers from -7 to 7. Blocks of `block` elements begin anew in every
    chunk. Two numbers travel in a byte, scales in float32. Add in x's dtype. This rank's own chunk is rounded, too.
    """
    raise NotImplementedError


# ---- error feedback --------------------------------------------------------------------------------------------------


def send_with_feedback(compress: Callable[[Array], Array], x: Array, error: Array) -> Array:
    """What is sent: x plus the error so far, compressed. error (S,) becomes what is not sent, in place.

    compress(array) returns what is left of an array, in the same shape, and does not change it. Do not change x.
    """
    raise NotImplementedError


# ---- top-k -----------------------------------------------------------------------------------------------------------


def add_largest(comm: Comm, x: Array, k: int) -> tuple[Array, Array]:
    """(total, sent), each (S,): the sum over all ranks of their k elements with the largest |x|; and this rank's k.

    Both are 0 elsewhere. A rank sends its k values, in x's dtype, and their places, in 4 bytes each. Do not change x.
    """
    raise NotImplementedError


def top_k_step(comm: Comm, gradient: Array, velocity: Array, error: Array, k: int, momentum: float) -> Array:
    """A step of Deep Gradient Compression: the sum of what all ranks have sent, (S,).

    velocity ← momentum · velocity + gradient, and error ← error + velocity. The k largest elements of the error are
    sent. Where this rank has sent one, its error and its velocity become 0. Both (S,) change in place. Do not change
    gradient.
    """
    raise NotImplementedError


# ---- local steps -----------------------------------------------------------------------------------------------------


def outer_step(
    comm: Comm, parameters: Array, moments: Sequence[Array], start: Array, velocity: Array, lr: float, momentum: float
) -> None:
    """DiLoCo's outer step, after H inner steps. With delta = start - the mean of the ranks' parameters:

    velocity ← momentum · velocity + delta, and parameters ← start - lr · (delta + momentum · velocity)

    start (S,): the parameters with which the inner steps began, as the last outer step left them; the same on all ranks
    moments: the averages of this rank's inner optimizer, of its own gradients. It will go on with its own.

    What changes, changes in place, so that the next H steps can begin. With lr = 1 and momentum = 0, parameters become
    the mean.
    """
    raise NotImplementedError
