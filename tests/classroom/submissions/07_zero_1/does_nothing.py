"""Every body is empty, but that it sends zeros where something must be sent."""
# keeps: nothing

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minidist import ring
from minidist.data_parallel import DataParallel
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat

Array = np.ndarray


class Unit(NamedTuple):
    param: Array
    grad: Array
    master: Array


def train_step(
    comm: Comm,
    units: Sequence[Unit],
    x: Array,
    y: Array,
    batch: int,
    clip: float,
    optimizer: Callable[[int, Array], Array],
) -> tuple[float, float]:
    with comm.phase("norm"):
        ring.all_reduce(comm, np.zeros(1))
    return 0.0, 0.0


class ZeRO1(DataParallel):
    def piece(self, flat: Flat) -> slice:
        return slice(0)

    def owned(self, flat: Flat) -> tuple[Array, Array]:
        return np.zeros(1), np.zeros(1)

    def reduce(self, flat: Flat) -> None:
        pass

    def squared_norm(self) -> float:
        with self.comm.phase("norm"):
            return ring.all_reduce(self.comm, np.zeros(1))[0]

    def after_update(self) -> None:
        pass
