"""Every body is empty, but that it sends zeros where something must be sent."""
# keeps: nothing

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.ring import reduce_scatter
from minidist.zero1 import ZeRO1

Array = np.ndarray


@dataclass
class Unit:
    param: Array
    grad: Array
    master: Array


def train_step(
    comm: Comm, units: Sequence[Unit], parts: Sequence[tuple[Array, Array]], batch: int, rate: float
) -> float:
    with comm.phase("reduce-scatter gradients"):
        reduce_scatter(comm, np.zeros(comm.size))
    return 0.0


class ZeRO2(ZeRO1):
    accumulated = 1

    def allocate(self, flat: Flat, start: Array) -> None:
        pass

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        return np.zeros(1), np.zeros(1)

    def collect(self, flat: Flat) -> None:
        pass

    def reduce(self, flat: Flat) -> None:
        with self.comm.phase("reduce-scatter gradients"):
            reduce_scatter(self.comm, np.zeros(self.comm.size))
