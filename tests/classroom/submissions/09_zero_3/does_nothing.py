"""Every body is empty, as that of after_update should be, but that it sends zeros where something must be sent."""
# keeps: memory_afterwards

import numpy as np

from minidist import ring
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.zero1 import ZeRO1

Array = np.ndarray


def train_step(comm: Comm, shards: list[Array], x: Array, y: Array, batch: int, rate: float) -> float:
    with comm.phase("all-gather forward"):
        ring.all_gather(comm, np.zeros(1), comm.size)
    return 0.0


class ZeRO3(ZeRO1):
    accumulated = 1

    def allocate(self, flat: Flat, start: Array) -> None:
        pass

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        return np.zeros(1), np.zeros(1)

    def parameters_of(self, flat: Flat) -> Array:
        with self.comm.phase("all-gather forward"):
            ring.all_gather(self.comm, np.zeros(1), self.comm.size)
        return flat.param

    def forget(self, flat: Flat) -> None:
        pass

    def collect(self, flat: Flat) -> None:
        pass

    def reduce(self, flat: Flat) -> None:
        with self.comm.phase("reduce-scatter gradients"):
            ring.reduce_scatter(self.comm, np.zeros(self.comm.size))
        flat.bucket = None

    def after_update(self) -> None:
        pass
