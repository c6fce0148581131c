"""A unit's parameters as one flat buffer: what the engines store, send, cut into shards and update.

PyTorch's FSDP calls it FlatParameter (Zhao et al. 2023, sections 3.2.1 and 4.2): flatten each parameter, concatenate,
pad on the right to a multiple of the number of shards, cut evenly. A shard begins and ends anywhere, also in a matrix.
"""

import numpy as np

from minidist.nn.layers import Unit
from minidist.nn.tensor import Array


class Flat:
    """One unit's parameters. The layout is made here; the arrays belong to the engine, which makes and drops them."""

    def __init__(self, unit: Unit, shards: int) -> None:
        self.name, self.parameters = unit.name, unit.parameters
        self.size = sum(parameter.size for parameter in unit.parameters)
        self.padded = -(-self.size // shards) * shards
        self.decayed = sum(parameter.size for parameter in unit.parameters if parameter.decays)  # they come first
        # Held for good:
        self.param: Array  # parameters as stored: of the whole unit, or of this rank's shard
        self.grad: Array  # gradients, likewise
        self.master: Array  # what the optimizer updates: of the piece that this rank owns
        self.moments: list[Array]  # and its state
        # Held in passing, the whole unit (padded,):
        self.gathered: Array | None = None  # parameters as stored, where `param` is only a shard (ZeRO-3)
        self.bucket: Array | None = None  # the gradient to be reduced, where `grad` is only a shard (ZeRO-2)
        self.values: Array | None = None  # parameters as arithmetic sees them, between bind and release
        self.slopes: Array | None = None  # the gradient as the backward writes it

    def initial(self, seed: int) -> Array:
        """The starting values, float64 (padded,)."""
        start = np.zeros(self.padded)
        for parameter, view in self.views(start):
            view[...] = parameter.initial(seed)
        return start

    def views(self, buffer: Array) -> list[tuple]:
        """Each parameter with its part of a buffer (padded,), in the parameter's shape."""
        pairs, offset = [], 0
        for parameter in self.parameters:
            pairs.append((parameter, buffer[offset : offset + parameter.size].reshape(parameter.shape)))
            offset += parameter.size
        return pairs

    def places(self, piece: slice) -> list[tuple]:
        """Each parameter of which a piece of the flat buffer holds something, with where in that piece it is."""
        pairs, offset = [], -piece.start
        for parameter in self.parameters:
            place = slice(max(offset, 0), min(offset + parameter.size, piece.stop - piece.start))
            if place.start < place.stop:
                pairs.append((parameter, place))
            offset += parameter.size
        return pairs

    def bind(self, values: Array, slopes: Array | None = None) -> None:
        """Let the parameters see these values (padded,), and for a backward add their gradients to `slopes`: zeros."""
        self.values, self.slopes = values, slopes
        for parameter, view in self.views(values):
            parameter.bind(view)
        if slopes is not None:
            for parameter, view in self.views(slopes):
                parameter.bind(parameter.data, view)

    def collect(self, grad: Array) -> None:
        """Add the gradient that the backward has written to `grad` (padded,), rounded to how gradients are stored."""
        assert self.slopes is not None
        np.add(grad, self.slopes, out=grad, casting="same_kind")

    def release(self) -> None:
        """Take values and gradients away again; a parameter used after that raises Released and names itself."""
        self.values = self.slopes = None
        for parameter in self.parameters:
            parameter.release()
