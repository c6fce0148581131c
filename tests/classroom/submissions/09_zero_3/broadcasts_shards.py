"""The ranks take turns in sending their shard to everyone: the right bytes, but not around the ring."""
# loses: train_step, train_step_wire, train_step_memory, parameters_of_wire
# says: in parameters_of of embedding rank 0 sends to rank 2 at broadcasts_shards.py:\d+; around the ring

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
        if flat.gathered is None:
            n, whole = self.comm.size, np.empty(flat.padded, flat.param.dtype)
            whole[self.piece(flat)] = flat.param
            with self.comm.phase(f"all-gather {self.direction}"):
                for owner in range(n):
                    shard = whole[ring.chunk(flat.padded, n, owner)]
                    for dest in range(n):
                        if self.comm.rank == owner != dest:
                            self.comm.send(shard, dest)
                        elif self.comm.rank == dest != owner:
                            self.comm.recv(shard, owner)
            flat.gathered = whole
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
