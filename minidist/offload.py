"""ZeRO-Offload: gradients, optimizer states and the update in host memory; the device keeps what it computes with.

    mpirun -n 4 python -m minidist.offload
    mpirun -n 4 python -m minidist.offload --zero 3
    mpirun -n 4 python -m minidist.offload --delayed-update 40

Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC 2021.

Of 16 bytes a parameter the passes need 2. The others are the update's, whose work grows with Ψ alone, where that of
the passes grows with the batch as well: a CPU can do it (section 3.2). The price is what goes over the link. Whoever
offloads anything moves 4 bytes a parameter in each step at least, and of all 128 ways to place the nodes of the paper's
data-flow graph one moves no more and saves most (section 3; `minidist/memory/partition.py` tries them): gradients go
down, updated parameters come up, and what is in float32 stays below.

    device                              link                   host
    backward of a unit, reduce-scatter  2ψ/N down              add it to the shard's gradient     2Ψ/N held
                                                               norm, Adam on the shard           12Ψ/N held
    this rank's part of the parameters  2Ψ/N up                round the updated shard to float16
    all-gather                                                                          (section 4.2, figure 4)

Each rank's host has its shard of ZeRO-2, so N ranks move together what one alone would: 4Ψ. With a micro-batches to a
step, each sends its gradients down. --zero 1 and 3 are DeepSpeed's other stages: stage 1 keeps whole gradients on the
device until they are complete, stage 3 keeps a shard of the parameters there.

--delayed-update N (section 5.2): after N steps, when training has calmed down, the update no longer waits. The host
works on one step's gradients while the device is in the next one's passes, with parameters that are one update behind.
A checkpoint waits for the update that is under way, so that who goes on from it goes on as the run that saved it.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from minidist import contents, ring
from minidist.data_parallel import Axes
from minidist.engine import Settings
from minidist.mpi.clock import Clock
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.nn.ops import BLOCK
from minidist.nn.optim import InThreads
from minidist.nn.tensor import Array
from minidist.zero2 import ZeRO2
from minidist.zero3 import ZeRO3

FORWARD, BACKWARD, UPDATE = 1, 2, 4  # of a unit, on the logical clock: with a larger batch only the first two grow


class Offload(ZeRO2):
    """Parameters on the device; gradients, optimizer state and the update on the host."""

    updates_on = "host"

    def __init__(
        self, units: list[Unit], settings: Settings, comm: Comm, axes: Axes | None = None,
        delay_after: int | None = None, threads: int = 1,
    ) -> None:  # fmt: skip
        """delay_after: steps after which updates run beside the next one's passes. threads: of this rank, for them."""
        self.delay_after = delay_after
        self.spare: dict[Flat, Array] = {}  # a second gradient for each Flat: one is updated by, the other collected in
        self.clock, self.host_clock = Clock(), Clock()
        super().__init__(units, settings, comm, axes)
        largest = min(BLOCK, max(flat.master.size for flat in self.flats))
        rooms = [self.host.empty("workspace", largest, settings.precision.updated) for _ in range(threads)]
        self.settings = replace(settings, optimizer=InThreads(settings.optimizer, rooms))
        self.beside = ThreadPoolExecutor(1, "host")
        self.pending: Future[None] | None = None  # the update that runs beside
        self.began = 0.0  # this step, on the clock
        self.seen: dict[str, float] = {}  # of the last step that updated, for the report

    def make_arrays(self, flat: Flat) -> None:
        super().make_arrays(flat)
        if self.delay_after is not None:
            self.spare[flat] = self.host.zeros("gradients", flat.grad.size, flat.grad.dtype)

    # ---- what goes over the link -------------------------------------------------------------------------------------

    def reduce(self, flat: Flat) -> None:
        """Sum a bucket; this rank's shard of it goes down, to be added to what the host has of this step."""
        assert flat.bucket is not None
        shard = flat.bucket[self.piece(flat)]  # (padded/N,)
        with self.comm.phase("reduce-scatter gradients"):
            ring.reduce_scatter(flat.comm, flat.bucket, out=shard)
        arrived = self.host.empty("messages", shard.size, shard.dtype)
        flat.grad += self.link.down("gradients", shard, out=arrived)
        self.give_back(flat)

    def give_back(self, flat: Flat) -> None:
        """The bucket has been reduced."""
        flat.bucket = None

    def refresh(self, flat: Flat) -> None:
        """The updated shard goes up, as parameters are stored: float32 never leaves the host."""
        param, _ = self.owned(flat)
        rounded = flat.master.astype(self.precision.stored, copy=False)
        self.link.up("parameters", self.host.hold("messages", rounded, rename=False), out=param)
        self.clock.receive(self.host_clock.now)

    # ---- the update, at the end of a step or beside the next one -----------------------------------------------------

    def apply_gradients(self) -> None:
        updates = self.updates
        self.settle()
        super().apply_gradients()
        if self.updates > updates:
            self.seen["step time"] = self.clock.now - self.began
        self.began = self.clock.now

    def update_all(self, scale: float) -> None:
        self.host_clock.receive(self.clock.now)  # the last gradient has gone down
        if self.delay_after is None or self.steps < self.delay_after:
            super().update_all(scale)
            return
        for flat in self.flats:
            flat.grad, self.spare[flat] = self.spare[flat], flat.grad
        self.pending = self.beside.submit(self.update_beside, scale)

    @np.errstate(over="ignore", invalid="ignore")
    def update_beside(self, scale: float) -> None:
        """In a thread: it touches what is on the host, and no message."""
        begin = time.perf_counter()
        for flat in self.flats:
            self.update(flat, self.spare[flat], scale)
        self.seen["update ms"] = 1000 * (time.perf_counter() - begin)

    def settle(self) -> None:
        """Wait for the update that runs beside, and let its parameters come up."""
        if self.pending is None:
            return
        begin = time.perf_counter()
        self.pending.result()
        self.seen["waited ms"] = 1000 * (time.perf_counter() - begin)
        self.pending = None
        self.device.doing = "in the update"
        for flat in self.flats:
            self.refresh(flat)
        self.after_update()
        self.updates += 1

    # ---- what everything takes, on the logical clock -----------------------------------------------------------------

    def run_unit(self, unit: Unit, *arguments: Any) -> Array:
        if self.direction == "forward":  # what runs again for a backward is of that backward's cost
            self.clock.work(FORWARD)
        return super().run_unit(unit, *arguments)

    def collect_all(self, unit: Unit) -> None:
        self.clock.work(BACKWARD)
        super().collect_all(unit)

    def update(self, flat: Flat, grad: Array, scale: float) -> None:
        self.host_clock.work(UPDATE)
        super().update(flat, grad, scale)

    def counted(self) -> dict[str, Any]:
        return {**super().counted(), **self.seen, "skipped": self.steps - self.updates}


class Offload1(Offload):
    """Stage 1: whole gradients stay on the device, and add up there until the step's last backward."""

    accumulated = None

    def allocate(self, flat: Flat, start: Array) -> None:
        super().allocate(flat, start)
        flat.bucket = self.device.zeros("gradients", flat.padded, self.precision.stored)  # (padded,)

    def give_back(self, flat: Flat) -> None:
        assert flat.bucket is not None
        flat.bucket.fill(0)


class Offload3(Offload, ZeRO3):
    """Stage 3: the device keeps a shard of the parameters, which goes up; the next forward gathers it."""


ENGINES = {1: Offload1, 2: Offload, 3: Offload3}


if __name__ == "__main__":
    contents.run("offload")  # its options, and what the paper promises: programs/offload.py
