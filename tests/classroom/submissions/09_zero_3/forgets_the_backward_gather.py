"""Takes in the backward what it gathered in the forward, which was forgotten."""
# loses: train_step, train_step_wire, train_step_memory, parameters_of, parameters_of_again, parameters_of_wire, memory_backward
# says: parameters_of returned NoneType where an array \(\d+,\) is wanted: all parameters

import numpy as np

from minidist import ring
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
        if self.direction == "forward" and flat.gathered is None:
            with self.comm.phase("all-gather forward"):
                flat.gathered = ring.all_gather(self.comm, flat.param, flat.padded)
        return flat.gathered

    def forget(self, flat: Flat) -> None:
        flat.gathered = None

    def collect(self, flat: Flat) -> None:
        if flat.bucket is None:
            flat.bucket = np.zeros(flat.padded, self.precision.stored)
        flat.collect(flat.bucket)

    def reduce(self, flat: Flat) -> None:
        with self.comm.phase("reduce-scatter gradients"):
            mine = ring.reduce_scatter(self.comm, flat.bucket)
        flat.grad += mine
        flat.bucket = None

    def after_update(self) -> None:
        pass
