"""Parameters as one flat buffer: what the engines store, send, cut into shards and update.

PyTorch's FSDP calls it FlatParameter (Zhao et al. 2023, sections 3.2.1 and 4.2): flatten each parameter, concatenate,
pad on the right to a multiple of the number of shards, cut evenly. A shard begins and ends anywhere, also in a matrix.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist.nn.tensor import Array, Parameter


class Flat:
    """Parameters of a unit that the same ranks share. The layout is made here; the arrays belong to the engine, which
    makes and drops them.

    Most units have one Flat. If different ranks share a unit's parameters, it has one for each group of ranks: for what
    tensor parallelism cuts, and for what it leaves whole; for experts, and for the other parameters.
    """

    def __init__(self, name: str, parameters: Sequence[Parameter]) -> None:
        self.name = name
        self.parameters = sorted(parameters, key=lambda parameter: not parameter.decays)  # matrices first
        self.size = sum(parameter.size for parameter in parameters)
        self.decayed = sum(parameter.size for parameter in parameters if parameter.decays)
        # The ranks that share it. A communicator is any object with a rank and a size.
        self.comm: Any = None  # the data axis: ranks that hold the same values, or a shard of them each
        self.shards = 1  # its size is padded to a multiple of this
        self.sum_over: dict[str, Any] = {}  # phase -> ranks of other axes that also have a part of its gradient
        self.counted = True  # by this rank, in the norm: if several ranks have the whole gradient, only one counts it
        self.device: Any = None  # the pool that holds its whole arrays while they exist
        # How often it is read: set by the engine whose units read it.
        self.readers = 0  # units of this rank that read it
        self.backwards_done = 0  # their backwards so far, of those that complete its gradient
        self.seen: set[int] | None = None  # if wanted: fingerprints of the values that were bound
        # Held permanently:
        self.param: Array  # parameters as stored: all of them, or this rank's shard
        self.grad: Array  # gradients, likewise
        self.master: Array  # what the optimizer updates, for the piece that this rank owns
        self.moments: list[Array]  # and its state
        self.added: dict[str, Array] = {}  # what a method adds, for the same piece, by name
        self.own: dict[str, Array] = {}  # what it adds for the whole Flat, (padded,): another on each rank
        # Transient, whole (padded,):
        self.gathered: Array | None = None  # parameters as stored, where `param` is only a shard (ZeRO-3)
        self.bucket: Array | None = None  # the gradient to be reduced, where `grad` is only a shard (ZeRO-2)
        self.values: Array | None = None  # parameters as arithmetic sees them, between bind and release
        self.raw_grad: Array | None = None  # the gradient as the backward writes it

    @property
    def states(self) -> dict[str, Array]:
        """All that a checkpoint has of it, by what comes before a parameter's name there."""
        moments = {f"moment{i}/": moment for i, moment in enumerate(self.moments, 1)}
        return {"": self.master, **moments, **{f"{name}/": array for name, array in self.added.items()}}

    def divide(self, comm: Any) -> None:
        """Let the ranks of `comm` hold the same values, or a shard of them each."""
        self.comm, self.shards = comm, comm.size

    @property
    def padded(self) -> int:
        """Elements of the buffer: the size, rounded up to a multiple of the number of shards."""
        return -(-self.size // self.shards) * self.shards

    def initial(self, seed: int) -> Array:
        """The starting values, float64 (padded,)."""
        start = np.zeros(self.padded)
        for parameter, view in self.views(start):
            view[...] = parameter.initial(seed)
        return start

    def views(self, buffer: Array) -> list[tuple[Parameter, Array]]:
        """Each parameter with its part of a buffer (padded,), in the parameter's shape."""
        pairs, offset = [], 0
        for parameter in self.parameters:
            pairs.append((parameter, buffer[offset : offset + parameter.size].reshape(parameter.shape)))
            offset += parameter.size
        return pairs

    def bind(self, values: Array | None, raw_grad: Array | None = None) -> None:
        """Let the parameters see these values (padded,), and for a backward write their gradients into `raw_grad`,
        zeros. Gradients of matrices that come after the rest of a backward need no values: None."""
        self.values, self.raw_grad = values, raw_grad
        if values is not None:
            if self.seen is not None:
                self.seen.add(fingerprint(values))
            for parameter, view in self.views(values):
                parameter.bind(view)
        if raw_grad is not None:
            for parameter, view in self.views(raw_grad):
                parameter.bind_gradient(view)

    def collect(self, grad: Array) -> None:
        """Add the gradient that the backward has written to `grad` (padded,), rounded to how gradients are stored."""
        assert self.raw_grad is not None
        np.add(grad, self.raw_grad, out=grad, casting="same_kind")

    def release(self) -> None:
        """Take values and gradients away again; using a parameter after that raises Released with its name."""
        self.values = self.raw_grad = None
        for parameter in self.parameters:
            parameter.release()


def fingerprint(values: Array) -> int:
    """Tells values apart, such as the same parameters' before and after an update: the sum of their bit patterns."""
    pattern = np.dtype(f"u{values.itemsize}")
    return int(values.view(pattern).sum(dtype=pattern))
