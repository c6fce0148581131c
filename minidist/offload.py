"""ZeRO-Offload: gradients, optimizer states and the update move to host memory; the device keeps the parameters.

    mpirun -n 4 python -m minidist.offload
    mpirun -n 4 python -m minidist.offload --zero 3
    mpirun -n 4 python -m minidist.offload --zero 3 --parameters host
    mpirun -n 4 python -m minidist.offload --delayed-update 40

Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC 2021, arXiv 2101.06840.

Of the 16 bytes per parameter, forward and backward need 2. The update needs the others. Its work grows with Ψ only,
while the work of forward and backward also grows with the batch: so a CPU can do the update (section 3.2). The price is
the traffic over the link. Any kind of offload moves at least 4 bytes per parameter and step. There are 128 ways to
place the nodes of the paper's data-flow graph; one of them moves no more than that and saves the most memory (section
3; `minidist/memory/partition.py` tries them all). In it, gradients go down, updated parameters come up, and float32
values stay on the host.

    device                              link                   host
    backward of a unit, reduce-scatter  2ψ/N down              add it to the shard's gradient     2Ψ/N held
                                                               norm, Adam on the shard           12Ψ/N held
    this rank's part of the parameters  2Ψ/N up                round the updated shard to float16
    all-gather                                                                          (section 4.2, figure 4)

Each rank's host holds its shard of ZeRO-2, so N ranks together move what a single rank would: 4Ψ. If a step has several
micro-batches, each sends its gradients down. DeepSpeed's other stages are --zero 1 and 3: stage 1 keeps whole gradients
on the device until they are complete, and stage 3 keeps only a shard of the parameters there. With --parameters host
not even that: the shard waits on the host, too, and goes up for each gather, 4aΨ/N bytes in a step's a forwards and
backwards, where the updated one goes up once (DeepSpeed's offload_param).

--delayed-update N (section 5.2): after N steps, when training has calmed down, the device no longer waits for the
update. The host works on one step's gradients while the device runs the next step's forward and backward, with
parameters that lack this update. A checkpoint waits for the update under way, so that a run that continues from it gets
the same parameters as the run that saved it.
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

FORWARD, BACKWARD, UPDATE = 1, 2, 4  # per unit, on the logical clock; with a larger batch only the first two grow


class Offload(ZeRO2):
    """Parameters on the device; gradients, optimizer state and the update on the host."""

    updates_on = "host"

    def __init__(
        self, units: list[Unit], settings: Settings, comm: Comm, axes: Axes | None = None,
        delay_after: int | None = None, threads: int = 1,
    ) -> None:  # fmt: skip
        """delay_after: steps after which updates run during the next step. threads: how many a rank updates with."""
        super().__init__(units, settings, comm, axes)
        self.delay_after = delay_after
        self.spare: dict[Flat, Array] = {}  # a second gradient for each Flat: one updates while the other collects
        if self.delay_after is not None:
            self.spare = {flat: self.host.zeros("gradients", flat.grad.size, flat.grad.dtype) for flat in self.flats}
        self.clock, self.host_clock = Clock(), Clock()
        largest = min(BLOCK, max(flat.master.size for flat in self.flats))
        rooms = [self.host.empty("workspace", largest, settings.precision.updated) for _ in range(threads)]
        self.settings = replace(settings, optimizer=InThreads(settings.optimizer, rooms))
        self.beside = ThreadPoolExecutor(1, "host")
        self.pending: Future[None] | None = None  # the update that runs during the next step
        self.began = 0.0  # when this step began, on the clock
        self.seen: dict[str, float] = {}  # figures of the last step that updated, for the report

    # ---- what goes over the link -------------------------------------------------------------------------------------

    def reduce(self, flat: Flat) -> None:
        """Sum a bucket; send this rank's shard of it down, and add it to the step's gradient on the host."""
        assert flat.bucket is not None
        shard = flat.bucket[self.piece(flat)]  # (padded/N,)
        with self.comm.phase("reduce-scatter gradients"):
            ring.reduce_scatter(flat.comm, flat.bucket, out=shard)
        arrived = self.host.empty("messages", shard.size, shard.dtype)
        flat.grad += self.link.down("gradients", shard, out=arrived)
        self.give_back(flat)

    def give_back(self, flat: Flat) -> None:
        """Free the bucket: it has been reduced."""
        flat.bucket = None

    def refresh(self, flat: Flat) -> None:
        """Send the updated shard up in the dtype of stored parameters: float32 never leaves the host."""
        param, _ = self.owned(flat)
        rounded = flat.master.astype(self.precision.stored, copy=False)
        self.link.up("parameters", self.host.hold("messages", rounded, rename=False), out=param)
        self.clock.receive(self.host_clock.now)

    # ---- the update, at the end of a step or during the next one -----------------------------------------------------

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
        """Runs in a thread: it touches only host memory, and sends no message."""
        begin = time.perf_counter()
        for flat in self.flats:
            self.update(flat, self.spare[flat], scale)
        self.seen["update ms"] = 1000 * (time.perf_counter() - begin)

    def settle(self) -> None:
        """Wait for the update under way, and send its parameters up."""
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

    # ---- how long everything takes, on the logical clock -------------------------------------------------------------

    def run_unit(self, unit: Unit, *arguments: Any) -> Array:
        if self.direction == "forward":  # a forward that runs again is part of its backward's cost
            self.clock.work(FORWARD)
        return super().run_unit(unit, *arguments)

    def collect_all(self, unit: Unit) -> None:
        self.clock.work(BACKWARD)
        super().collect_all(unit)

    def update(self, flat: Flat, grad: Array, scale: float) -> None:
        if any(flat is unit.flats[0] for unit in self.units):  # a unit is updated in one go, even if it has two Flats
            self.host_clock.work(UPDATE)
        super().update(flat, grad, scale)

    def other_counts(self) -> dict[str, Any]:
        return {**super().other_counts(), **self.seen, "skipped": self.steps - self.updates}


class Offload1(Offload):
    """Stage 1: whole gradients stay on the device and add up there until the step's last backward."""

    accumulated = None

    def allocate(self, flat: Flat, start: Array) -> None:
        super().allocate(flat, start)
        flat.bucket = self.device.zeros("gradients", flat.padded, self.precision.summed)  # (padded,)

    def give_back(self, flat: Flat) -> None:
        assert flat.bucket is not None
        flat.bucket.fill(0)


class Offload3(Offload, ZeRO3):
    """Stage 3: the device keeps only a shard of the parameters. The updated shard goes up; the next forward gathers."""


class OffloadAll(Offload3):
    """Stage 3 whose shard of the parameters is on the host, too. It is on the device only while it is gathered."""

    def allocate(self, flat: Flat, start: Array) -> None:
        super().allocate(flat, start)
        flat.param = self.host.hold("parameters", start[self.piece(flat)].astype(self.precision.stored))  # (padded/N,)

    def parameters_of(self, flat: Flat) -> Array:
        if flat.gathered is not None:
            return flat.gathered
        below, flat.param = flat.param, self.device.empty("parameters", flat.param.size, self.precision.stored)
        self.link.up("parameters", below, out=flat.param)
        whole = super().parameters_of(flat)
        flat.param = below
        return whole

    def refresh(self, flat: Flat) -> None:
        """Round the updated shard, where it is."""
        flat.param[...] = flat.master
        ready = self.host_clock.now
        self.clock.receive(ready)


ENGINES = {1: Offload1, 2: Offload, 3: Offload3}


if __name__ == "__main__":
    contents.run("offload")  # its options, and what the paper promises: programs/offload.py
