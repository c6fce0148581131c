"""Exercise 05: data parallelism. Every rank has the whole model and its share of the batch; gradients are summed.

Fill in `train_step`, for the notebook's layers, and then the methods of `DataParallel`, for a transformer; `pytest
lessons/05_data_parallel` says how many points they earn. Neither needs the other.

The engine (minidist/engine.py) goes through the units of a model. Each unit's parameters lie behind one another in one
buffer, its Flat (minidist/nn/flat.py). The engine calls your methods at these places:

    at the start of a forward           rows: which sequences of the batch are this rank's
    when a Flat's gradient is complete  reduce: all that read it have had their backward, of the last micro-batch
    when the last backward is done      sum_over_axes
    then                                the norm of all gradients, clipping, the update: the engine's own

It weights each rank's loss by its share of the batch, so that sums over the ranks are means. You have:

    self.comm          this rank is comm.rank of comm.size = N
    self.waiting       Flats whose gradients are complete and not yet sent: a list, which is empty at first
    self.bucket_size   elements; as soon as so many wait, they are sent
    flat.grad          (flat.padded,) the gradient: this rank's until it is sent, and then the sum over the ranks
    flat.padded        its number of elements

Messages: ring.all_reduce(comm, x, out), as you know it from lesson 04; out may be x itself. Send within
`with self.comm.phase("all-reduce gradients"):`, so that it is counted under that name.
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
    """Given: tanh(h W + b), for h (rows, width). The flat buffer has W (width, width) and behind it b (width)."""
    width = h.shape[1]
    w, b = flat[: width * width].reshape(width, width), flat[width * width :]
    return np.tanh(h @ w + b)


def layer_backward(flat: Array, h: Array, out: Array, dout: Array) -> tuple[Array, Array]:
    """Given: the gradient of the unit's flat buffer, from these rows alone; and dh, for the layer below."""
    width = h.shape[1]
    dz = dout * (1 - out**2)
    gradient = np.concatenate([(h.T @ dz).reshape(-1), dz.sum(axis=0)])
    return gradient, dz @ flat[: width * width].reshape(width, width).T


# ---- first the notebook's layers: here is room for share, my_part, backward and clip_factor, as you wrote them -------


def train_step(comm: Comm, flats: Sequence[Array], x: Array, y: Array, rate: float, clip: float) -> tuple[float, float]:
    """One step of training of the layers above, with the squared error / 2 / B, on a batch of B rows.

    flats        of each layer the flat buffer, all of it, the same on every rank; updated in place, minus rate times
                 the gradient
    x, y         (B, width) the whole batch. Rank r works on its share of the rows alone: consecutive, in order of
                 ranks, and the first B mod N ranks have one more. A share may be empty
    clip         the largest norm of all gradients together, with which parameters may be updated; 0: any

    Returns this rank's part of the loss (over all ranks, parts add up to the loss), and the norm before clipping.
    Each layer's gradient is summed over the ranks by one ring all-reduce, as soon as it is there and before the
    backward of the layer below, in phase "all-reduce gradients".
    """
    raise NotImplementedError


# ---- then a transformer ----------------------------------------------------------------------------------------------


class DataParallel(Engine):
    """Everything on every rank; gradients are summed, in buckets of several Flats."""

    def __init__(self, units: list[Unit], settings: Settings, comm: Comm) -> None:
        """Given."""
        self.comm, self.waiting = comm, list[Flat]()
        self.bucket_size = settings.bucket_size or 0
        for flat in flats_of(units):
            flat.divide(comm)  # pads it to a multiple of N
        super().__init__(units, settings)

    def rows(self, n: int) -> range:
        """This rank's share of a batch of n sequences: consecutive, in order of ranks; the first n mod N have one more.

        Every sequence is somebody's, and nobody else's.
        """
        raise NotImplementedError

    def send_bucket(self) -> None:
        """Sum the gradients of all Flats in self.waiting over the ranks, in place; then none is waiting any more.

        With one all-reduce: copy them behind one another into one buffer, sum that, and copy the sums back into each
        flat.grad. The sum is the mean: every rank's loss is weighted by its share of the batch.
        """
        raise NotImplementedError

    def reduce(self, flat: Flat) -> None:
        """This Flat's gradient is complete: it waits; and if at least self.bucket_size elements wait, they are sent."""
        raise NotImplementedError

    def sum_over_axes(self) -> None:
        """The last backward is done, and the norm comes next: what still waits must be sent. Perhaps nothing does."""
        raise NotImplementedError
