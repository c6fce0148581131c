"""Weights in several versions, so that a micro-batch's backward sees what its forward saw.

Without a flush, updates are made while micro-batches are under way. PipeDream keeps the weights of each of them: weight
stashing (Narayanan et al., SOSP 2019, section 3.3); 2BW keeps two versions (arXiv 2006.09503, section 3.1). With a
flush there is one version, and nothing to keep.
"""

from typing import Any

import numpy as np

from minidist.engine import Engine, Settings
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.nn.tensor import Array


class WeightVersions(Engine):
    """Forward and backward use the version of the weights that `version` updates have made."""

    def __init__(self, units: list[Unit], settings: Settings, **beside: Any) -> None:
        super().__init__(units, settings, **beside)
        self.made = self.version = 0  # updates made since the stream began; the version in use
        self.stash: dict[int, dict[Flat, Array]] = {}  # older versions that are still needed

    def before_forward(self, unit: Unit) -> None:
        for flat in self.read_by(unit):
            flat.bind(self.widened(self.weights(flat)))

    def before_backward(self, unit: Unit) -> None:
        for flat in self.read_by(unit):
            flat.bind(self.widened(self.weights(flat)), slopes=np.zeros(flat.padded, self.precision.computed))

    def weights(self, flat: Flat) -> Array:
        """A unit's parameters in the version that is in use."""
        return flat.param if self.version == self.made else self.stash[self.version][flat]

    def keep_version(self, oldest: int) -> None:
        """Before an update: keep this version if a micro-batch may still ask for it, and none before `oldest`."""
        if self.made >= oldest:
            self.stash[self.made] = {flat: flat.param.copy() for flat in self.flats.values()}
        self.stash = {version: weights for version, weights in self.stash.items() if version >= oldest}
