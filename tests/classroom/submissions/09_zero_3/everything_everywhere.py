"""Holds and updates the whole model on every rank: data parallelism by another name."""
# keeps: owned, collect, memory_afterwards
# says: rank 0's flat.param of embedding is float\d+ \(\d+,\) where float\d+ \(\d+,\) is wanted: the unit has 125 elements

import numpy as np

from minidist import ring
from minidist.nn.flat import Flat
from minidist.zero1 import ZeRO1

Array = np.ndarray


class ZeRO3(ZeRO1):
    accumulated = 1

    def allocate(self, flat, start):
        flat.param = start.astype(self.precision.stored)
        flat.grad = np.zeros_like(flat.param)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        return flat.param, flat.grad

    def parameters_of(self, flat):
        flat.gathered = flat.param
        return flat.gathered

    def forget(self, flat: Flat) -> None:
        flat.gathered = None

    def collect(self, flat: Flat) -> None:
        if flat.bucket is None:
            flat.bucket = np.zeros(flat.padded, self.precision.stored)
        flat.collect(flat.bucket)

    def reduce(self, flat):
        with self.comm.phase("reduce-scatter gradients"):
            flat.grad += ring.all_reduce(self.comm, flat.bucket)
        flat.bucket = None

    def after_update(self) -> None:
        pass
