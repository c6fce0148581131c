"""Weights in several versions, so that a micro-batch's backward sees what its forward saw.

Without a flush, updates are made while micro-batches are under way. PipeDream keeps the weights of each of them: weight
stashing (Narayanan et al., SOSP 2019, section 3.3); 2BW keeps two versions (arXiv 2006.09503, section 3.1). With a
flush there is one version, and nothing to keep.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from minidist.nn.flat import Flat
from minidist.nn.tensor import Array


class Versions:
    """A version is named by the number of updates that have made it, since the stream began."""

    def __init__(self, flats: Sequence[Flat]) -> None:
        self.flats, self.made = flats, 0
        self.stash: dict[int, list[Array]] = {}  # older versions that are still needed: each Flat's param

    def restart(self) -> None:
        """A new stream begins, with the newest weights as its first version."""
        self.made, self.stash = 0, {}

    @contextmanager
    def use(self, version: int) -> Iterator[None]:
        """Inside, the Flats have the weights of this version."""
        newest = [flat.param for flat in self.flats]
        for flat, param in zip(self.flats, self.stash.get(version, newest), strict=True):
            flat.param = param
        try:
            yield
        finally:
            for flat, param in zip(self.flats, newest, strict=True):
                flat.param = param

    def keep(self, oldest: int) -> None:
        """Before an update: keep this version if a micro-batch may still ask for it, and none before `oldest`."""
        if self.made >= oldest:
            self.stash[self.made] = [flat.param.copy() for flat in self.flats]
        self.stash = {version: params for version, params in self.stash.items() if version >= oldest}
        self.made += 1
