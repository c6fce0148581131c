"""Exercise 20: a slow wire. Send less, remember what was not sent, and sum what was rounded.

Fill in the six functions; `pytest lessons/20_slow_wire` says how many points they earn. Arrays are flat, (S,), unless
their shape is given, and stay what they are: float32 or float64. Send with `minidist.ring`:

    all_to_all(comm, x)          row i of x (N, ...) goes to rank i; row i of the result came from rank i
    all_gather(comm, x, size)    the ranks' arrays, one after the other, `size` elements in all
    all_reduce(comm, x)          the sum
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
    """(numbers, scales): x ≈ numbers · scales, each row in blocks of `block` elements that share a scale.

    x (N, c): its last block in a row may be shorter

    numbers (N, c), int8: whole numbers from -most to most

    scales (N, ⌈c/block⌉), float32: with the largest |x| of a block its largest number is `most`; 0 for a block of zeros

    No element is off by more than half of its scale, except for float32's rounding of the scale itself.
    """
    raise NotImplementedError


def add_quantized(comm: Comm, x: Array, block: int) -> Array:
    """Chunk r of the ranks' sum, on rank r: (S/N,), of x (S,), where N divides S.

    Every rank's chunk is rounded once, to whole numbers from -7 to 7 in blocks of `block`, which may cross no chunk's
    end. Two numbers travel in a byte, scales in float32. Sums are formed in x's dtype. For this rank's own chunk, too,
    its rounded one is summed.
    """
    raise NotImplementedError


# ---- error feedback --------------------------------------------------------------------------------------------------


def send_with_feedback(compress: Callable[[Array], Array], x: Array, error: Array) -> Array:
    """What is sent: what compress leaves of x and of the error so far. error (S,) becomes what is not sent, in place.

    compress(x) returns an array like x, and leaves x alone. x stays as it is.
    """
    raise NotImplementedError


# ---- the largest -----------------------------------------------------------------------------------------------------


def add_largest(comm: Comm, x: Array, k: int) -> tuple[Array, Array]:
    """(total, sent), each (S,): the sum of all ranks' k largest |x|, and what of it is this rank's. The rest is 0.

    A rank sends its k values, in x's dtype, and their places, in 4 bytes each. x stays as it is.
    """
    raise NotImplementedError


def top_k_step(comm: Comm, gradient: Array, velocity: Array, error: Array, k: int, momentum: float) -> Array:
    """A step of Deep Gradient Compression: what all ranks have sent, added up (S,).

    velocity ← momentum · velocity + gradient, and error ← error + velocity. The k largest of the error are sent. Where
    something was sent, error and velocity are 0 afterwards. Both (S,) change in place, and gradient stays as it is.
    """
    raise NotImplementedError


# ---- steps alone -----------------------------------------------------------------------------------------------------


def outer_step(
    comm: Comm, parameters: Array, moments: Sequence[Array], start: Array, velocity: Array, lr: float, momentum: float
) -> None:
    """DiLoCo's step, after H steps alone. With delta = start - the mean of the ranks' parameters:

    velocity ← momentum · velocity + delta, and parameters ← start - lr · (delta + momentum · velocity)

    start (S,): where the inner steps began: the parameters as the outer step before left them, the same on all ranks
    moments: what this rank's optimizer has seen of its own gradients. It will go on with that.

    All arrays change in place, so that the next H steps can begin. With lr = 1 and momentum = 0 this is the mean.
    """
    raise NotImplementedError
