"""Exercise 10: what is kept for the backward, and how to keep less.

Fill in the seven functions; `pytest lessons/10_activations` says how many points they earn. A layer has two methods:

    y, kept = layer.forward(x)          kept: a list of arrays, all that its backward needs
    dx = layer.backward(dy, kept)       it also adds to the gradients of the layer's own parameters

A layer remembers nothing of its own: `kept` is there as long as somebody holds it. What you hold is counted: an array
that no variable, no list and no view of it names any more is gone. Layers are numbered from 0, and come as a list.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- first part: layers that run again -------------------------------------------------------------------------------


def run_forward(layers: Sequence[Any], x: Array, k: int) -> tuple[Array, list[Array]]:
    """All layers, one after the other: (y, inputs).

    y        what the last layer makes
    inputs   the inputs of layers 0, k, 2k, ...: one for each segment of k layers; the last segment may be shorter

    Hold nothing else: neither what the layers keep nor the inputs in between. k >= 1; it may be more than all layers.
    """
    raise NotImplementedError


def run_segment(layers: Sequence[Any], x: Array, dy: Array) -> Array:
    """One segment's backward. x: the input of its first layer; dy: the gradient of what its last layer makes.

    Run each layer's forward again, once; then each layer's backward, with what that forward kept. Return the gradient
    of x. Of what a layer has kept hold nothing any more when the next backward begins.
    """
    raise NotImplementedError


def run_backward(layers: Sequence[Any], inputs: list[Array], k: int, dy: Array) -> Array:
    """The backward of all layers, from `inputs` as run_forward returns them: the gradient of the first layer's input.

    dy: the gradient of what the last layer makes. Call run_segment for one segment after the other. Take each input out
    of the list when its turn comes: in the end the list is empty, and on the way no input is there that has been used.
    """
    raise NotImplementedError


# ---- second part: what must be the same twice, and how much is worth while -------------------------------------------


def mask(key: Sequence[int], name: str, shape: tuple[int, ...], p: float) -> Array:
    """A boolean array of this shape for dropout: false with probability p, each element for itself.

    key: integers >= 0, such as (seed, step). The same key, name, shape and p give the same mask, whenever and however
    often one asks; another key or another name gives another mask. Leave NumPy's own generator, which
    np.random.random() uses, as it is.
    """
    raise NotImplementedError


def best_interval(n: int, given: float, layer: float) -> int:
    """The k from 1 to n for which least is held; if there are several, any of them.

    Held are the inputs of all segments of k layers, `given` bytes each (the last segment may be shorter: it has one,
    too), and all that the k layers of one segment keep, `layer` bytes each.
    """
    raise NotImplementedError


# ---- third part: an input that t ranks share -------------------------------------------------------------------------


def chunk(size: int, n: int, i: int) -> slice:
    """The i-th of n consecutive chunks of `size` elements: the first size mod n are one element longer.

    Given, because everyone must cut in the same places: x[chunk(x.size, n, i)] is a view of chunk i of x (S,).
    """
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))


def cut(comm: Comm, x: Array) -> Array:
    """This rank's part of x, which all ranks of comm hold: chunk `comm.rank` of its elements in their order, (S/t,).

    x may have any shape, and does not change. Nobody shall hold x because of the part. Nothing is sent.
    """
    raise NotImplementedError


def whole(comm: Comm, part: Array, shape: tuple[int, ...]) -> Array:
    """x again, of this shape, on every rank: from its parts, as `cut` has made them.

    In lesson 04's way: every rank sends each of t-1 chunks once. Use `minidist.ring.all_gather(comm, part, size)`,
    which returns all `size` elements (size,), or your own from lesson 04.
    """
    raise NotImplementedError
