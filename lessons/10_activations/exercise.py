"""Exercise 10: what is kept for the backward, and how to keep less.

Fill in the seven functions; `pytest lessons/10_activations` says how many points they earn. A layer has two methods:

    y, kept = layer.forward(x)          kept: a list of all arrays that its backward needs
    dx = layer.backward(dy, kept)       it also adds to the gradients of the layer's own parameters

A layer remembers nothing itself: `kept` exists as long as your program holds it. The arrays that you hold are counted:
when no variable, list or view refers to an array any more, it is gone. Layers are numbered from 0, and come as a list.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- first part: recomputed layers ----------------------------------------------------------------------------------


def run_forward(layers: Sequence[Any], x: Array, k: int) -> tuple[Array, list[Array]]:
    """All layers, one after the other: (y, inputs).

    y        the output of the last layer
    inputs   the inputs of layers 0, k, 2k, ...: one for each segment of k layers; the last segment may be shorter

    Hold nothing else: neither what the layers keep nor the inputs in between. k >= 1; it may exceed the number of
    layers.
    """
    raise NotImplementedError


def run_segment(layers: Sequence[Any], x: Array, dy: Array) -> Array:
    """One segment's backward. x: the input of its first layer; dy: the gradient of its last layer's output.

    Run each layer's forward again, once; then each layer's backward, with what that forward kept. Return the gradient
    of x. When the next backward begins, hold nothing of what the previous layer kept.
    """
    raise NotImplementedError


def run_backward(layers: Sequence[Any], inputs: list[Array], k: int, dy: Array) -> Array:
    """The backward of all layers, from `inputs` as run_forward returns them: the gradient of the first layer's input.

    dy: the gradient of the last layer's output. Call run_segment for one segment after the other. Take each input out
    of the list when its turn comes: the list must never hold an input that has been used, and must be empty at the end.
    """
    raise NotImplementedError


# ---- second part: what must be the same twice, and how much is worth keeping -----------------------------------------


def mask(key: Sequence[int], name: str, shape: tuple[int, ...], p: float) -> Array:
    """A boolean array of this shape for dropout: each element is false with probability p, independently.

    key: integers >= 0, such as (seed, step). The same key, name, shape and p give the same mask, at any time and in any
    call; another key or another name gives another mask. Leave NumPy's own generator, which np.random.random() uses, as
    it is.
    """
    raise NotImplementedError


def best_interval(n: int, given: float, layer: float) -> int:
    """The k from 1 to n for which the fewest bytes are held; if there are several, any of them.

    Held are the inputs of all segments of k layers, `given` bytes each (a shorter last segment has one, too), and the
    arrays that the k layers of one segment keep, `layer` bytes each.
    """
    raise NotImplementedError


# ---- third part: an input that t ranks share -------------------------------------------------------------------------


def chunk(size: int, n: int, i: int) -> slice:
    """The i-th of n consecutive chunks of `size` elements: the first size mod n are one element longer.

    Given, because all ranks must cut in the same places: x[chunk(x.size, n, i)] is a view of chunk i of x (S,).
    """
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))


def cut(comm: Comm, x: Array) -> Array:
    """This rank's part of x, which all ranks of comm hold: chunk `comm.rank` of its elements in their order, (S/t,).

    x may have any shape, and must not change. The part must not keep x in memory. Send nothing.
    """
    raise NotImplementedError


def whole(comm: Comm, part: Array, shape: tuple[int, ...]) -> Array:
    """x again, in this shape, on every rank: from the parts that `cut` has made.

    As in lesson 04, every rank sends each of t-1 chunks once. Use `minidist.ring.all_gather(comm, part, size)`,
    which returns all `size` elements (size,), or your own from lesson 04.
    """
    raise NotImplementedError
