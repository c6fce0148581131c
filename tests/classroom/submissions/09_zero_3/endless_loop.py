"""Waits for the last micro-batch before it reduces; but that one comes after this one's backward."""
# keeps: allocate, owned, parameters_of, parameters_of_again, parameters_of_wire, collect, memory_for_good, memory_forward, memory_afterwards, messages
# says: (?s)hung: rank \d had used \d s of processor time.*computing at endless_loop.py:\d+ in reduce \(not in a message call\)
# patience: 2

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

    def parameters_of(self, flat: Flat) -> Array:
        if flat.gathered is None:
            with self.comm.phase("all-gather " + self.direction):
                flat.gathered = ring.all_gather(self.comm, flat.param, flat.padded)
        return flat.gathered

    def forget(self, flat: Flat) -> None:
        flat.gathered = None

    def collect(self, flat: Flat) -> None:
        if flat.bucket is None:
            flat.bucket = np.zeros(flat.padded, self.precision.stored)
        flat.collect(flat.bucket)

    def reduce(self, flat):
        while self.micro_batch < self.settings.accumulate:
            pass
        flat.bucket = None

    def after_update(self) -> None:
        pass
