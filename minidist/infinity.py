"""ZeRO-Infinity: model states are in files; a rank's device and host hold only what is in use, or just about to be.

    mpirun -n 4 python -m minidist.infinity
    mpirun -n 4 python -m minidist.infinity --layers 16 --batch 8 --recompute full --device-memory 1MB --host-memory 1MB
    mpirun -n 8 python -m minidist.infinity --bandwidth-table

Rajbhandari et al., "ZeRO-Infinity: Breaking the GPU memory wall for extreme scale deep learning", SC 2021, arXiv
2104.07857.

ZeRO-3 holds 16Ψ/N bytes on each rank, but needs none of them for long: a unit's shard is used in its forward, in its
backward and in its update, and in between it can wait on a disk (section 5.1.1). The price is time, unless the disk's
bandwidth suffices (section 4; `minidist/papers/zero_infinity.py`) and is used while units compute (section 6.2). While
the unit of turn i is gathered and runs, these transfers are under way:

    nc-transfer   disk to host     the shard of turn i+2    threads, in blocks    2 rooms of max ψ/N
    cg-transfer   host to device   the shard of turn i+1    a thread              2 rooms of max ψ/N
    gg-transfer   all-gather       the unit of turn i       the main thread: only it speaks MPI

(The paper is one turn further ahead, because it gathers while it computes, as `minidist/fsdp.py` does.) The update runs
on the host, as in ZeRO-Offload (section 5.2.2), one Flat after another:

    disk to host  master, m, v     of Flat i+1 arrive       threads               3 rooms of 12 max ψ/N
    update                         of Flat i                the main thread
    host to disk  master, m, v, p  of Flat i-1 leave        threads

Elements that a rank moves in a step of a micro-batches (parameters and gradients take 2 bytes each, states 4):

    disk to host     2aΨ/N  parameters, in each forward and each backward;  3Ψ/N  states
    host to disk      Ψ/N   parameters;                                     3Ψ/N  states
    device to host   aΨ/N   gradients, as in ZeRO-Offload: they stay in host memory until the update (stage 1: Ψ/N)

The paper counts 20 bytes per parameter where ZeRO counts 16: it also keeps gradients in float32, and moves them along
with the states. With --zero 1 and 2 parameters stay on the devices, and only the states are in files.

Bandwidth-centric partitioning (section 6.1): every rank has a shard of every unit on its own disk, so N disks deliver a
unit N times as fast as the single disk of an owner that broadcasts it: compare `fetch_shards` and `fetch_from_owner`.
Memory-centric tiling (section 5.1.3), for a layer that is too large to be gathered: `minidist/memory/tiles.py`.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from minidist import contents, ring
from minidist.data_parallel import Axes
from minidist.engine import PEAKS_TOGETHER, Loss, Settings
from minidist.memory.files import Ahead, DiskLink, Mover, Moves, Room, Rooms, SwapFile, wait
from minidist.memory.pool import Pool
from minidist.memory.recompute import Turn, list_gathers
from minidist.mpi.clock import Clock
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.layers import Tokens, Unit
from minidist.nn.tensor import Array
from minidist.offload import Offload, Offload1, Offload3

READERS = 2  # threads of a rank that read and write: its disk gets this many requests at a time


class Infinity(Offload):
    """ZeRO-Offload whose optimizer states are in the file `swap`. Host memory holds at most three Flats' states.
    This is stage 2."""

    def __init__(
        self, units: list[Unit], settings: Settings, comm: Comm, swap: SwapFile, axes: Axes | None = None
    ) -> None:
        super().__init__(units, replace(settings, swap=swap), comm, axes)
        self.before: dict[str, int] = {}  # the kernel's counters when the step began
        largest, dtype = max(flat.master.size for flat in self.flats), self.precision.updated
        self.rooms = Rooms(self.host, "optimizer", 3, (1 + settings.optimizer.moments) * largest, dtype)
        self.all_rooms = [self.rooms]

    def make_memories(self) -> None:
        super().make_memories()
        self.disk = Pool("disk", self.settings.disk_capacity, PEAKS_TOGETHER, beside=self.device)
        self.slow_link = DiskLink(self.host, self.disk, self.settings.swap)
        self.mover = Mover(self.slow_link, READERS)
        self.pools.append(self.disk)
        self.links.append(self.slow_link)

    def make_arrays(self, flat: Flat) -> None:
        """Make them in host memory, and move them to the file at once: the host holds those of one Flat at a time."""
        super().make_arrays(flat)
        kind = "optimizer" if self.precision.mixed else "parameters"
        flat.master = self.put(kind, flat.master)
        for i, moment in enumerate(flat.moments):
            flat.moments[i] = self.put("optimizer", moment)

    def put(self, kind: str, array: Array) -> Array:
        """Move an array from host memory to a new place in the file."""
        file = self.settings.swap.empty(self.disk, kind, array.size, array.dtype)
        wait(self.mover.down(kind, array, out=file))
        return file

    # ---- the update: one Flat's states arrive while a second's are in use and a third's leave ------------------------

    def with_states(self, flats: Sequence[Flat]) -> Iterator[Flat]:
        for flat, room in Ahead((flat, self.read_states(flat)) for flat in flats):
            in_file = flat.master, *flat.moments
            with room as states:
                flat.master, *flat.moments = states.reshape(len(in_file), -1)  # each (padded/N,), while they are in use
                yield flat
                flat.master, *flat.moments = in_file
                room.leaving = self.write_states(flat, room)

    def read_states(self, flat: Flat) -> Room:
        """Start to read a Flat's states; returns the room into which they go."""
        in_file = [flat.master, *flat.moments]
        room = self.rooms.take(len(in_file) * flat.master.size)
        pairs = zip(in_file, room.array.reshape(len(in_file), -1), strict=True)
        room.arriving = [move for file, state in pairs for move in self.mover.up("optimizer", file, out=state)]
        return room

    def write_states(self, flat: Flat, room: Room) -> Moves:
        """Start to write a Flat's states back to the file."""
        in_file = [flat.master, *flat.moments]
        pairs = zip(in_file, room.array.reshape(len(in_file), -1), strict=True)
        return [move for file, state in pairs for move in self.mover.down("optimizer", state, out=file)]

    def refresh(self, flat: Flat) -> None:
        """As in ZeRO-Offload. If a checkpoint has just been loaded, the states are read into a room first."""
        if self.disk.has(flat.master):
            for _ in self.with_states([flat]):
                super().refresh(flat)
        else:
            super().refresh(flat)

    def after_update(self) -> None:
        for rooms in self.all_rooms:
            rooms.settle()
        super().after_update()

    # ---- what was moved, as the kernel counts it ---------------------------------------------------------------------

    def forward(self, x: Tokens, y: Tokens) -> Loss:
        if self.micro_batch == 0:
            self.before = self.mover.kernel()
        return super().forward(x, y)

    def apply_gradients(self) -> None:
        updates = self.updates
        super().apply_gradients()
        if self.updates > updates:
            self.seen |= self.mover.kernel_since(self.before)

    def other_counts(self) -> dict[str, Any]:
        return {**super().other_counts(), "overwritten": sum(rooms.overwritten for rooms in self.all_rooms)}


class Infinity1(Infinity, Offload1):
    """Stage 1: gradients add up on the device."""


class Infinity3(Infinity, Offload3):
    """Stage 3: parameters are in the file, too, and are read before they are needed."""

    def __init__(
        self, units: list[Unit], settings: Settings, comm: Comm, swap: SwapFile, axes: Axes | None = None
    ) -> None:
        super().__init__(units, settings, comm, swap, axes)
        largest, dtype = max(flat.param.size for flat in self.flats), self.precision.stored
        self.host_rooms = Rooms(self.host, "parameters", 2, largest, dtype)
        self.device_rooms = Rooms(self.device, "parameters", 2, largest, dtype)
        self.all_rooms += [self.host_rooms, self.device_rooms]
        self.lifter = ThreadPoolExecutor(1, "device")
        self.coming: Ahead[tuple[Flat, Room]] = Ahead()  # what a pass gathers next, in order, in rooms of the device

    def allocate(self, flat: Flat, start: Array) -> None:
        shard = self.host.hold("messages", start[self.piece(flat)].astype(self.precision.stored))  # (padded/N,)
        flat.param = self.put("parameters", shard)
        flat.grad = self.host.zeros("gradients", shard.size, self.precision.summed)

    # ---- a pass: what it gathers is known before it begins -----------------------------------------------------------

    def expect(self, turns: Sequence[Turn]) -> None:
        """Start on a pass's first units: each is lifted one turn ahead of its use, and read one turn before that."""
        self.drop()
        self.coming = Ahead(map(self.lift, Ahead(map(self.read, list_gathers(turns)))))

    def read(self, flat: Flat) -> tuple[Flat, Room]:
        """nc: read a shard from its file into a room of the host."""
        room = self.host_rooms.take(flat.param.size)
        room.arriving = self.mover.up("parameters", flat.param, out=room.array)
        return flat, room

    def lift(self, read: tuple[Flat, Room]) -> tuple[Flat, Room]:
        """cg: move a shard from the host's room to one of the device, as soon as it has been read."""
        flat, room = read
        place = self.device_rooms.take(room.array.size)
        room.leaving = place.arriving = [self.lifter.submit(self.lift_up, room, place)]
        self.host_rooms.give_back(room)
        return flat, place

    def lift_up(self, room: Room, place: Room) -> Array:
        """Move a shard that has been read to the device. Runs in a thread of its own."""
        wait(room.arriving)
        return self.link.up("parameters", room.array, out=place.array)

    def parameters_of(self, flat: Flat) -> Array:
        """gg: gather all parameters (padded,) from the ranks' shards, while the next two units' are under way."""
        if flat.gathered is None:
            sent_for, place = next(self.coming)
            assert sent_for is flat
            with place as shard:
                flat.gathered = self.device.empty("gathered", flat.padded, self.precision.stored)
                with self.comm.phase(f"all-gather {self.direction}"):
                    ring.all_gather(flat.comm, shard, flat.padded, out=flat.gathered)
        return flat.gathered

    def drop(self) -> None:
        """Drop the transfers that a failed pass had started."""
        for rooms in (self.host_rooms, self.device_rooms):
            rooms.clear()
        for flat in self.flats:
            flat.gathered = None

    def refresh(self, flat: Flat) -> None:
        """Write the updated shard, rounded, to its file."""
        room = self.host_rooms.take(flat.param.size)
        with room as shard:
            shard[...] = flat.master
            room.leaving = self.mover.down("parameters", shard, out=flat.param)


ENGINES = {1: Infinity1, 2: Infinity, 3: Infinity3}


# ---- read a unit from many disks, or from one (section 6.1) ----------------------------------------------------------


def fetch_shards(comm: Comm, link: DiskLink, clock: Clock, file: Array, out: Array) -> None:
    """Read a whole unit (S,) into `out`, by bandwidth-centric partitioning: each rank's file has its shard (S/N,)."""
    shard = ring.cut(out, comm.size)[comm.rank]
    link.up("unit", file, out=shard)
    ring.all_gather(comm, shard, out.size, out=out)


def fetch_from_owner(comm: Comm, link: DiskLink, clock: Clock, file: Array, out: Array) -> None:
    """Read a whole unit (S,) from its owner, which broadcasts it, as in ZeRO-Offload: rank 0's file has all of it."""
    if comm.rank == 0:
        link.up("unit", file, out=out)
    clock.receive(comm.broadcast_object(clock.now))  # no rank has it before the owner
    ring.broadcast(comm, out)


if __name__ == "__main__":
    contents.run("infinity")  # its options, and what the paper promises: programs/infinity.py
