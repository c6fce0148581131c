"""A disk as a rank's third memory: arrays in a file, the link to it, threads that move, and rooms that are reused.

    disk, swap = Pool("disk"), SwapFile("--disk", folder)
    link = DiskLink(host, disk, swap)
    flat.master = swap.empty(disk, "optimizer", size, dtype)                   # stands for the file; holds no memory
    reading = mover.up("optimizer", flat.master, out=room)                     # starts it, in threads, block by block
    wait(reading)

ZeRO-Infinity's offload engine has the same parts. Requests are cut into blocks, and threads serve many of them at a
time. A few buffers are used over and over, because memory that a device can access directly (pinned memory) is scarce.

A link reads and writes by system calls, so the kernel also counts its bytes, per thread, in
/proc/self/task/THREAD/io. Nothing here waits until data has really reached the disk: a file lasts only as long as its
run. To outlast it, make a checkpoint (`minidist/checkpoint.py`).
"""

import os
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np

from minidist import UsageError, former_names, unix
from minidist.files import on_disk
from minidist.memory.allocator import settle_arenas
from minidist.memory.kernel import Kernel
from minidist.memory.link import Link
from minidist.memory.pool import Array, Pool, owner_of

BLOCK = 1 << 16  # bytes that are read or written at a time
ALIGNED = 16  # bytes: where an array may begin

T = TypeVar("T")
Moves = Sequence["Future[Array]"]  # one for each block of an array: over when all of them are


# ---- files -----------------------------------------------------------------------------------------------------------


class SwapFile:
    """A rank's file, with its arrays one after another. It has no name: whatever ends the process, nothing is left.

    Raises UsageError if it cannot be made or written.
    """

    def __init__(self, option: str, folder: str | None) -> None:
        """folder: in which it is made; None: in the system's folder for temporary files. option: which names it."""
        self.folder, self.size = folder or tempfile.gettempdir(), 0
        try:
            os.makedirs(self.folder, exist_ok=True)
            file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115 (closed with this object)
        except OSError as error:
            raise UsageError(f"{option} {self.folder}: cannot write there: {error.strerror}") from None
        self.file = file
        self.close = weakref.finalize(self, file.close)
        unix.allow_more_files()  # an array in a file keeps one open

    def __enter__(self) -> "SwapFile":
        return self

    def __exit__(self, *failure: object) -> None:
        """Give its room on the disk back, however the run has ended."""
        self.close()

    def empty(self, pool: Pool, kind: str, size: int, dtype: np.typing.DTypeLike) -> Array:
        """An array (size,) of a pool whose values are in the file: a view of the file (mmap), so that any part can be
        read as from any other array. Raises OutOfMemory if the pool has no room for it, FileFailed if the disk has
        none."""
        with on_disk("write", f"a file in {self.folder}"):
            array = np.memmap(self.file, dtype, "r+", self.size, (size,))  # a hole at first
        self.size += -(-array.nbytes // ALIGNED) * ALIGNED
        return pool.hold(kind, array)


class DiskLink(Link):
    """Between host memory and a file. bandwidth: bytes per second; if given, waiting throttles the link to it."""

    def __init__(self, upper: Pool, lower: Pool, swap: SwapFile, bandwidth: float | None = None) -> None:
        super().__init__(upper, lower)
        self.swap, self.bandwidth = swap, bandwidth

    def copy(self, array: Array, out: Array) -> None:
        """Copy between memory and the file. Raises FileFailed if the disk fails."""
        if self.bandwidth:
            time.sleep(array.nbytes / self.bandwidth)
        written = isinstance(out, np.memmap)
        in_file, in_memory = (out, array) if written else (array, out)
        verb, move = ("write", unix.write_at) if written else ("read", unix.read_at)
        place, rest = place_of(in_file), in_memory.view(np.uint8).data  # no buffer is of float16 or bfloat16
        with on_disk(verb, f"a file in {self.swap.folder}"):
            while rest:
                done = move(self.swap.file, rest, place)
                if not done:
                    raise OSError(f"it ends after {place:,} bytes")
                place, rest = place + done, rest[done:]


def place_of(array: Array) -> int:
    """Where in its file an array, or a part of an array, begins, in bytes."""
    whole = owner_of(array)
    assert isinstance(whole, np.memmap)
    first, here = (each.__array_interface__["data"][0] for each in (whole, array))
    return int(whole.offset + here - first)


# ---- threads ---------------------------------------------------------------------------------------------------------


class Mover:
    """Threads that move arrays over a link, in blocks."""

    def __init__(self, link: Link, threads: int) -> None:
        self.link = link
        self.ids = ids = []  # type: list[int]  # the kernel's
        self.threads = ThreadPoolExecutor(threads, "disk", lambda: ids.append(threading.get_native_id()))
        self.account = Kernel()
        settle_arenas()

    def up(self, phase: str, array: Array, out: Array) -> Moves:
        """Start moving an array (n,) of the lower memory into `out`."""
        return [self.threads.submit(self.link.up, phase, *parts) for parts in in_blocks(array, out)]

    def down(self, phase: str, array: Array, out: Array) -> Moves:
        """Start moving an array (n,) of the upper memory into `out`."""
        return [self.threads.submit(self.link.down, phase, *parts) for parts in in_blocks(array, out)]

    def kernel(self) -> dict[str, int]:
        """All bytes that the threads, and the whole process, have read and written so far, by the kernel's count.
        "looked" is the part that calls like this one have read. Empty if the kernel does not count."""
        looked = self.account.looked
        try:
            process = self.account.io()
            threads = [self.account.io(thread) for thread in self.ids]
        except OSError:
            return {}
        read, written = (sum(of_thread[i] for of_thread in threads) for i in (0, 1))
        process_read, process_written = process
        return {
            "kernel read": read,
            "kernel written": written,
            "process read": process_read,
            "process written": process_written,
            "looked": looked,
        }

    def kernel_since(self, before: dict[str, int]) -> dict[str, int]:
        """The bytes since an earlier count."""
        return {way: nbytes - before[way] for way, nbytes in self.kernel().items() if way in before}


def in_blocks(array: Array, out: Array) -> Iterable[tuple[Array, Array]]:
    """Pairs of corresponding blocks of both arrays."""
    step = BLOCK // array.itemsize
    return ((array[start : start + step], out[start : start + step]) for start in range(0, array.size, step))


def wait(moves: Moves) -> None:
    """Return when all moves are over. Raises what one of them has raised."""
    for move in moves:
        move.result()


# ---- rooms -----------------------------------------------------------------------------------------------------------


class Room:
    """A room in use. Its `with` waits until everything has arrived in the room, and returns the room at the end."""

    def __init__(self, rooms: "Rooms", whole: Array, size: int) -> None:
        self.rooms, self.whole, self.array = rooms, whole, whole[:size]
        self.arriving: Moves = ()  # moves into it
        self.leaving: Moves = ()  # moves out of it: over before it is taken again

    def __enter__(self) -> Array:
        wait(self.arriving)
        return self.array

    def __exit__(self, *failure: object) -> None:
        self.rooms.give_back(self)


class Rooms:
    """Arrays of one size that are used in turn."""

    def __init__(self, pool: Pool, kind: str, count: int, size: int, dtype: np.typing.DTypeLike) -> None:
        self.free: deque[tuple[Array, Moves]] = deque((pool.empty(kind, size, dtype), ()) for _ in range(count))
        self.taken: list[Room] = []
        self.overwritten = 0  # bytes of rooms that were taken again before they were returned

    def take(self, size: int) -> Room:
        """The room that was returned first, for an array (size,), once all moves out of it are over. If no room has
        been returned, the one that was taken first is overwritten."""
        if self.free:
            whole, leaving = self.free.popleft()
            wait(leaving)
        else:
            whole = self.taken.pop(0).whole
            self.overwritten += whole.nbytes
        self.taken.append(Room(self, whole, size))
        return self.taken[-1]

    def give_back(self, room: Room) -> None:
        if room in self.taken:
            self.taken.remove(room)
            self.free.append((room.whole, room.leaving))

    def clear(self) -> None:
        """Return all rooms, once all moves into them are over."""
        for room in [*self.taken]:
            with room:
                pass

    def settle(self) -> None:
        """Wait for all moves out of rooms."""
        for _, leaving in self.free:
            wait(leaving)


class Ahead(Generic[T]):
    """An iterator that makes each item one step before its use: making an item starts its transfer."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self.items, self.made = iter(items), deque[T]()
        self.send_for()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self.made:
            raise StopIteration
        item = self.made.popleft()
        self.send_for()
        return item

    def send_for(self) -> None:
        """Make the next item, if there is one. If not, drop the source: it may refer to the owner of this object."""
        for item in self.items:
            self.made.append(item)
            return
        self.items = iter(())


__getattr__ = former_names(__name__)
