"""ZeRO-Infinity: model states in files; a rank's device and host have only what is in use, or just about to be.

    mpirun -n 4 python -m minidist.infinity
    mpirun -n 4 python -m minidist.infinity --layers 16 --batch 8 --recompute full --device-memory 1MB --host-memory 1MB
    mpirun -n 8 python -m minidist.infinity --bandwidth-table

Rajbhandari et al., "ZeRO-Infinity: Breaking the GPU memory wall for extreme scale deep learning", SC 2021.

Of ZeRO-3's 16Ψ/N bytes on each rank none must be anywhere for long: a unit's shard is used in its forward, in its
backward and in its update, and in between it can wait on a disk (section 5.1.1). The price is time, unless the disk's
bandwidth suffices (section 4; `minidist/papers/zero_infinity.py`) and is used while units compute (section 6.2). Here
is what is under way while the unit of turn i is gathered and runs:

    nc-transfer   disk to host     the shard of turn i+2    threads, in blocks    2 rooms of max ψ/N
    cg-transfer   host to device   the shard of turn i+1    a thread              2 rooms of max ψ/N
    gg-transfer   all-gather       the unit of turn i       this one: it alone speaks MPI

(The paper is one turn further ahead, for it gathers while it computes, as `minidist/fsdp.py` does.) And in the update,
whose arithmetic is the host's as in ZeRO-Offload (section 5.2.2), one Flat after the other:

    disk to host  master, m, v     of Flat i+1 come         threads               3 rooms of 12 max ψ/N
    update                         of Flat i                this one
    host to disk  master, m, v, p  of Flat i-1 go           threads

Elements that a rank moves in a step of a micro-batches, parameters and gradients in 2 bytes each, states in 4:

    disk to host     2aΨ/N  parameters, in each forward and each backward;  3Ψ/N  states
    host to disk      Ψ/N   parameters;                                     3Ψ/N  states
    device to host   aΨ/N   gradients, as in ZeRO-Offload: they stay in host memory until the update (stage 1: Ψ/N)

The paper counts 20 bytes a parameter where ZeRO counts 16: it keeps gradients in float32 too, and moves them along with
the states. With --zero 1 and 2 parameters stay on the devices, as there, and the states alone are in files.

Bandwidth-centric partitioning (section 6.1): every rank has a shard of every unit, on a disk of its own, so N disks
bring a unit N times as fast as the one disk of an owner who broadcasts it: `fetch_shards` beside `fetch_from_owner`.
Memory-centric tiling (section 5.1.3), for a layer that is too large to be gathered: `minidist/memory/tiles.py`.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

from minidist import UsageError, command, ring, train
from minidist.claims.files import check_room
from minidist.claims.infinity import TimedLink, bandwidth_table, claims, needs, print_closing
from minidist.cli.options import Parser, memory_size, path_name
from minidist.data_parallel import Axes
from minidist.engine import JOINT, Loss, Passage, Settings
from minidist.fsdp import Turn, way_back
from minidist.memory.files import DiskLink, Files, Folder, Mover, Moves, Rooms, wait
from minidist.memory.pool import Pool
from minidist.memory.recompute import Segment
from minidist.mpi.comm import Comm
from minidist.mpi.run import run
from minidist.mpi.shm import ranks_here
from minidist.nn.flat import Flat
from minidist.nn.layers import Batch, Unit, count_parameters
from minidist.nn.tensor import Array
from minidist.offload import Offload, Offload1, Offload3

READERS = 2  # threads of a rank that read and write: requests that its disk has at a time


class Infinity(Offload):
    """ZeRO-Offload whose optimizer states are in files of `folder`. Host memory has those of three Flats at most. This
    is stage 2."""

    def __init__(
        self, units: list[Unit], settings: Settings, comm: Comm, folder: Folder, axes: Axes | None = None
    ) -> None:
        self.folder = folder
        self.before: dict[str, int] = {}  # what the kernel had counted when the step began
        super().__init__(units, settings, comm, axes)
        largest, dtype = max(flat.master.size for flat in self.flats), self.precision.updated
        self.rooms = Rooms(self.host, "optimizer", 3, (1 + settings.optimizer.moments) * largest, dtype)
        self.all_rooms = [self.rooms]

    def make_memories(self) -> None:
        super().make_memories()
        self.disk = Pool("disk", self.settings.disk_capacity, JOINT, beside=self.device)
        self.files = Files(self.folder, self.disk)
        self.slow_link = DiskLink(self.host, self.disk)
        self.mover = Mover(self.slow_link, READERS)
        self.pools.append(self.disk)
        self.links.append(self.slow_link)

    def make_arrays(self, flat: Flat) -> None:
        """In host memory, as there, and at once into files: no more than one Flat's are there at a time."""
        super().make_arrays(flat)
        kind = "optimizer" if self.precision.mixed else "parameters"
        flat.master = self.put(kind, f"{flat.name}.master", flat.master)
        for i, moment in enumerate(flat.moments, 1):
            flat.moments[i - 1] = self.put("optimizer", f"{flat.name}.moment{i}", moment)

    def put(self, kind: str, name: str, array: Array) -> Array:
        """What is in host memory, in a new file."""
        file = self.files.empty(kind, name, array.size, array.dtype)
        wait(self.mover.down(kind, array, out=file))
        return file

    # ---- the update: one Flat's states come while another's are in use, and a third's go -----------------------------

    def update_all(self, scale: float) -> None:
        coming = self.read_states(self.flats[0])
        for flat, following in zip_longest(self.flats, self.flats[1:]):
            states, reading = coming
            if following:
                coming = self.read_states(following)
            wait(reading)
            files = flat.master, flat.moments
            flat.master, *flat.moments = states  # each (padded/N,), until they have been updated
            self.update(flat, self.owned(flat)[1], scale)
            self.refresh(flat)
            flat.master, flat.moments = files
            self.rooms.give_back(self.write_states(flat, states))
        self.after_update()
        self.updates += 1

    def read_states(self, flat: Flat) -> tuple[Array, Moves]:
        """A room (1 + moments, padded/N), and what is under way to it."""
        files = [flat.master, *flat.moments]
        states = self.rooms.take(len(files) * flat.master.size).reshape(len(files), -1)
        pairs = zip(files, states, strict=True)
        return states, [block for file, room in pairs for block in self.mover.up("optimizer", file, out=room)]

    def write_states(self, flat: Flat, states: Array) -> Moves:
        """The way back."""
        pairs = zip([flat.master, *flat.moments], states, strict=True)
        return [block for file, room in pairs for block in self.mover.down("optimizer", room, out=file)]

    def refresh(self, flat: Flat) -> None:
        """From the room in which the master copy is; or from its file, when a checkpoint has just been loaded."""
        if not self.disk.has(flat.master):
            super().refresh(flat)
            return
        file, flat.master = flat.master, self.rooms.take(flat.master.size)
        wait(self.mover.up("optimizer", file, out=flat.master))
        super().refresh(flat)
        flat.master = file
        self.rooms.give_back()

    def after_update(self) -> None:
        for rooms in self.all_rooms:
            rooms.settle()
        super().after_update()

    # ---- what was moved, by the kernel's account ---------------------------------------------------------------------

    def forward(self, x: Array, y: Array) -> Loss:
        if self.micro_batch == 0:
            self.before = self.mover.kernel()
        return super().forward(x, y)

    def apply_gradients(self) -> None:
        updates = self.updates
        super().apply_gradients()
        if self.updates > updates:
            self.seen |= self.mover.kernel_since(self.before)

    def counted(self) -> dict[str, Any]:
        return {**super().counted(), "overwritten": sum(rooms.overwritten for rooms in self.all_rooms)}


class Infinity1(Infinity, Offload1):
    """Stage 1: gradients add up on the device."""


class Infinity3(Infinity, Offload3):
    """Stage 3: parameters are in files as well, and come before they are needed."""

    def __init__(
        self, units: list[Unit], settings: Settings, comm: Comm, folder: Folder, axes: Axes | None = None
    ) -> None:
        super().__init__(units, settings, comm, folder, axes)
        largest, dtype = max(flat.param.size for flat in self.flats), self.precision.stored
        self.host_rooms = Rooms(self.host, "parameters", 2, largest, dtype)
        self.device_rooms = Rooms(self.device, "parameters", 2, largest, dtype)
        self.all_rooms += [self.host_rooms, self.device_rooms]
        self.lifter = ThreadPoolExecutor(1, "device")
        self.unread: deque[Flat] = deque()  # of this pass, in the order in which they will be gathered
        self.read: deque[tuple[Flat, Array, Moves]] = deque()  # on their way to the host, or there
        self.lifted: deque[tuple[Flat, Array, Moves]] = deque()  # on their way to the device, or there

    def allocate(self, flat: Flat, start: Array) -> None:
        shard = self.host.hold("messages", start[self.piece(flat)].astype(self.precision.stored))  # (padded/N,)
        flat.param = self.put("parameters", f"{flat.name}.parameters", shard)
        flat.grad = self.host.zeros("gradients", shard.size, shard.dtype)

    # ---- a pass: what is gathered in it is known before it begins ----------------------------------------------------

    def run(
        self, segments: Sequence[Segment], x: Array, batch: Batch, keep: bool = True
    ) -> tuple[Array, list[Passage]]:
        self.expect(Turn(unit, "forward", 1) for segment in segments for unit in segment.units)
        return super().run(segments, x, batch, keep)

    def run_back(self, passages: Sequence[Passage], dy: Array, weights: bool = True) -> Array | None:
        self.expect(turn for passage in reversed(passages) for turn in way_back(passage.segment))
        return super().run_back(passages, dy, weights)

    def expect(self, turns: Iterable[Turn]) -> None:
        """Send for the first units of a pass."""
        self.drop()
        self.unread.extend(gathered_in(turns))
        self.read_next()
        self.read_next()
        self.lift_next()

    def drop(self) -> None:
        """What a pass that has failed had sent for."""
        for _, _, moves in (*self.read, *self.lifted):
            wait(moves)
        for sent_for in (self.unread, self.read, self.lifted):
            sent_for.clear()
        for rooms in (self.host_rooms, self.device_rooms):
            while rooms.taken:
                rooms.give_back()
        for flat in self.flats:
            flat.gathered = None

    def read_next(self) -> None:
        """nc: the next shard, from its file into a room of the host."""
        if self.unread:
            flat = self.unread.popleft()
            room = self.host_rooms.take(flat.param.size)
            self.read.append((flat, room, self.mover.up("parameters", flat.param, out=room)))

    def lift_next(self) -> None:
        """cg: what is read next, from the host's room into one of the device, as soon as it is there."""
        if self.read:
            flat, room, reading = self.read.popleft()
            place = self.device_rooms.take(room.size)
            lifting = [self.lifter.submit(self.lift, room, reading, place)]
            self.host_rooms.give_back(lifting)
            self.lifted.append((flat, place, lifting))

    def lift(self, room: Array, reading: Moves, place: Array) -> Array:
        """In a thread of its own."""
        wait(reading)
        return self.link.up("parameters", room, out=place)

    def parameters_of(self, flat: Flat) -> Array:
        """gg: all of them (padded,), from everyone's shard, while the next two units' are under way."""
        if flat.gathered is None:
            sent_for, shard, lifting = self.lifted.popleft()
            assert sent_for is flat
            wait(lifting)
            self.read_next()
            self.lift_next()
            flat.gathered = self.device.empty("gathered", flat.padded, self.precision.stored)
            with self.comm.phase(f"all-gather {self.direction}"):
                ring.all_gather(flat.comm, shard, flat.padded, out=flat.gathered)
            self.device_rooms.give_back()
        return flat.gathered

    def refresh(self, flat: Flat) -> None:
        """The updated shard, rounded, goes into its file."""
        room = self.host_rooms.take(flat.param.size)
        room[...] = flat.master
        self.host_rooms.give_back(self.mover.down("parameters", room, out=flat.param))


ENGINES = {1: Infinity1, 2: Infinity, 3: Infinity3}


def gathered_in(turns: Iterable[Turn]) -> Iterator[Flat]:
    """What is gathered in a pass, in order: once for all that reads it, and for what runs again once more."""
    here: set[Flat] = set()
    for turn in turns:
        for flat in turn.unit.reads:
            if turn.what == "again" or flat not in here:
                yield flat
            if turn.what != "again":
                here.add(flat)


# ---- a unit from many disks, or from one (section 6.1) ---------------------------------------------------------------


def fetch_shards(comm: Comm, link: TimedLink, file: Array, out: Array) -> None:
    """All of a unit (S,) into `out`, by bandwidth-centric partitioning: everyone's file has his shard (S/N,)."""
    shard = ring.cut(out, comm.size)[comm.rank]
    link.up("unit", file, out=shard)
    ring.all_gather(comm, shard, out.size, out=out)


def fetch_from_owner(comm: Comm, link: TimedLink, file: Array, out: Array) -> None:
    """The same if units have owners, who broadcast them, as in ZeRO-Offload: rank 0's file has all of it (S,)."""
    if comm.rank == 0:
        link.up("unit", file, out=out)
    link.clock.receive(comm.broadcast_object(link.clock.now))  # nobody has it before the owner
    ring.broadcast(comm, out)


# ---- the run ---------------------------------------------------------------------------------------------------------


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--zero", type=int, choices=(1, 2, 3), default=3, help="the stage: below 3 parameters stay on the devices")
    add("--disk", type=path_name, metavar="DIR", help="a folder for the files; default: a temporary one")
    add("--disk-memory", type=memory_size, metavar="SIZE", help="of a rank's files, at most")
    add("--bandwidth-table", action="store_true", help="how fast N disks bring a unit, and how fast one does")


def prepare(made: Parser, arguments: Sequence[str], comm: Comm) -> tuple[command.Job, Folder]:
    """Parse, check, and lock this rank's folder. Raises UsageError for whatever cannot work."""
    job = command.prepare(made, arguments, comm.size, states=2)
    if job.options.bandwidth_table:
        for option in ("save", "load", "export", "sample", "memory_plot", "witness"):
            if vars(job.options)[option]:
                raise UsageError(f"--bandwidth-table trains nothing: leave --{option.replace('_', '-')} away")
    return job, folder_for(job.units, job.settings, "--disk", job.options.disk, comm)


def folder_for(units: list[Unit], settings: Settings, option: str, parent: str | None, comm: Comm) -> Folder:
    """This rank's, locked. Raises UsageError for one that cannot be used, or a disk that has too little room."""
    folder = Folder(option, parent, comm.rank)
    nbytes = 14 if settings.precision.mixed else 4 * settings.precision.bytes  # of a parameter, about
    check_room(option, str(folder.path), nbytes * count_parameters(units) * ranks_here() // comm.size)
    return folder


def main(comm: Comm, prepared: tuple[command.Job, Folder]) -> int:
    """Train and report."""
    job, folder = prepared
    if job.options.bandwidth_table:
        return bandwidth_table(comm, folder, fetch_shards, fetch_from_owner, job.options.json)
    job.settings.disk_capacity = job.options.disk_memory
    train.say_needs(job, comm, needs)
    with folder:
        engine = ENGINES[job.options.zero](job.units, job.settings, comm, folder)
        return train.run_job(job, engine, comm, claims, print_closing)


if __name__ == "__main__":
    made = command.parser(__doc__ or "", "infinity")  # python -OO drops docstrings
    add_options(made)
    run(prepare=lambda comm: prepare(made, sys.argv[1:], comm), main=main)
