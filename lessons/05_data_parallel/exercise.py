"""Exercise 05: data parallelism. Every rank has the whole model and its share of the batch; gradients are summed.

Fill in `train_step`, for the notebook's layers, and then the methods of `DataParallel`, for a transformer; `pytest
lessons/05_data_parallel` says how many points they earn. Neither needs the other.

The engine (minidist/engine.py) goes through the units of a model. Each unit's parameters lie one after another in one
buffer, its Flat (minidist/nn/flat.py). The engine calls your methods at these moments:

    at the start of a forward           rows: which sequences of the batch are this rank's
    when a Flat's gradient is complete  reduce: all units that read it have run their last micro-batch's backward
    when the last backward is done      sum_over_axes
    then                                the norm of all gradients, clipping, the update: done by the engine

It weights each rank's loss by the rank's share of the batch, so that sums over the ranks are means. You have:

    self.comm          this rank is comm.rank of comm.size = N
    self.waiting       Flats whose gradients are complete and not yet sent: a list, empty at first
    self.bucket_size   in elements: as soon as at least this many elements wait, send them
    flat.grad          (flat.padded,) the gradient: this rank's until it is sent, and then the sum over the ranks
    flat.padded        its number of elements

Messages: ring.all_reduce(comm, x, out), as you know it from lesson 04; out may be x itself. Call it inside
`with self.comm.phase("all-reduce gradients"):`, so that its bytes are counted under that name.
"""

from collections.abc import Sequence

import numpy as np

from minidist import ring  # noqa: F401
from minidist.engine import Engine, Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, flats_of

Array = np.ndarray


def layer(flat: Array, h: Array) -> Array:
    """Given: tanh(h W + b), for h (rows, width). The flat buffer holds W (width, width) and then b (width)."""
    width = h.shape[1]
    w, b = flat[: width * width].reshape(width, width), flat[width * width :]
    return np.tanh(h @ w + b)


def layer_backward(flat: Array, h: Array, out: Array, dout: Array) -> tuple[Array, Array]:
    """Given: the gradient of the unit's flat buffer, from these rows only; and dh, for the layer below."""
    width = h.shape[1]
    dz = dout * (1 - out**2)
    gradient = np.concatenate([(h.T @ dz).reshape(-1), dz.sum(axis=0)])
    return gradient, dz @ flat[: width * width].reshape(width, width).T


# ---- first the notebook's layers: here is room for share, my_part, backward and clip_factor, as you wrote them -------


def train_step(comm: Comm, flats: Sequence[Array], x: Array, y: Array, rate: float, clip: float) -> tuple[float, float]:
    """One training step of the layers above on a batch of B rows. The loss is the squared error / 2 / B.

    flats        each layer's whole flat buffer, the same on every rank; updated in place, by minus rate times the
                 gradient
    x, y         (B, width) the whole batch. Rank r works only on its share of the rows: consecutive rows, in the order
                 of ranks; the first B mod N ranks have one more. A share may be empty
    clip         the limit for the norm of all gradients together; larger ones are scaled down to it. 0: no limit

    Returns this rank's part of the loss (the parts of all ranks add up to the loss), and the norm before clipping.
    Each layer's gradient is summed over the ranks by one ring all-reduce, as soon as it is complete and before the
    backward of the layer below, in phase "all-reduce gradients".
    """
    raise NotImplementedError


# ---- then a transformer ----------------------------------------------------------------------------------------------


class DataParallel(Engine):
    """Every rank holds everything; gradients are summed, in buckets of several Flats."""

    def __init__(self, units: list[Unit], settings: Settings, comm: Comm) -> None:
        """Given."""
        self.comm, self.waiting = comm, list[Flat]()
        self.bucket_size = settings.bucket_size or 0
        for flat in flats_of(units):
            flat.divide(comm)  # pads it to a multiple of N
        super().__init__(units, settings)

    def rows(self, n: int) -> range:
        """This rank's share of a batch of n sequences: consecutive, in order of ranks; the first n mod N have one more.
        N is the number of ranks, self.comm.size.

        Every sequence is in exactly one rank's share.
        """
        raise NotImplementedError

    def send_bucket(self) -> None:
        """Sum the gradients of all Flats in self.waiting over the ranks, in place; then self.waiting is empty.

        Use one all-reduce: copy the gradients one after another into one buffer, sum it, and copy the sums back into
        each flat.grad. The sum is the mean, because every rank's loss is weighted by its share of the batch.
        """
        raise NotImplementedError

    def reduce(self, flat: Flat) -> None:
        """This Flat's gradient is complete: let it wait, and if at least self.bucket_size elements wait, send them."""
        raise NotImplementedError

    def sum_over_axes(self) -> None:
        """The last backward is done, and the norm comes next: send all Flats that still wait, if there are any."""
        raise NotImplementedError
