"""Every body is empty, but that it sends zeros where something must be sent."""
# keeps: nothing

from collections.abc import Sequence

import numpy as np

from minidist import ring
from minidist.engine import Engine, Settings
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, flats_of

Array = np.ndarray


def train_step(comm: Comm, flats: Sequence[Array], x: Array, y: Array, rate: float, clip: float) -> tuple[float, float]:
    with comm.phase("all-reduce gradients"):
        ring.all_reduce(comm, np.zeros(1))
    return 0.0, 0.0


class DataParallel(Engine):
    def __init__(self, units: list[Unit], settings: Settings, comm: Comm) -> None:
        self.comm, self.waiting = comm, list[Flat]()
        self.bucket_size = settings.bucket_size or 0
        for flat in flats_of(units):
            flat.divide(comm)
        super().__init__(units, settings)

    def rows(self, n: int) -> range:
        return range(0)

    def send_bucket(self) -> None:
        with self.comm.phase("all-reduce gradients"):
            ring.all_reduce(self.comm, np.zeros(1))

    def reduce(self, flat: Flat) -> None:
        pass

    def sum_over_axes(self) -> None:
        pass
