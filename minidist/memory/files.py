"""A disk as a rank's third memory: arrays in files, the link to them, threads that move, and rooms that are reused.

    disk = Pool("disk")
    files, link = Files(folder, disk), DiskLink(host, disk)
    flat.master = files.empty("optimizer", "block3.master", size, dtype)       # stands for the file; holds no memory
    reading = mover.up("optimizer", flat.master, out=room)                     # starts it, in threads, block by block
    wait(reading)

ZeRO-Infinity's offload engine has the same parts. Requests are cut into blocks, and threads serve many of them at a
time. A few buffers are used over and over, because memory that a device can access directly (pinned memory) is scarce.

A link reads and writes by system calls, so the kernel also counts its bytes, per thread, in
/proc/self/task/THREAD/io. Nothing here waits until data has really reached the disk: files last only as long as a run.
To outlast it, make a checkpoint (`minidist/checkpoint.py`).
"""

import os
import shutil
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from minidist import UsageError, processes, unix
from minidist.files import STATES, lock, make_own_folder, make_temporary_folder, on_disk, remove
from minidist.memory.allocator import settle_arenas
from minidist.memory.kernel import Kernel
from minidist.memory.link import Link
from minidist.memory.pool import Array, Pool, owner_of

BLOCK = 1 << 16  # bytes that are read or written at a time

T = TypeVar("T")
Moves = Sequence["Future[Array]"]  # one for each block of an array: over when all of them are


# ---- folders and files -----------------------------------------------------------------------------------------------


class Folder:
    """A rank's own folder, for its use alone as long as this object lives. The folder and its files are removed with
    this object, or by `remove`. If the process is killed, the next one removes them.

    Raises UsageError if it cannot be made or written, or if another run is using it.
    """

    def __init__(self, option: str, parent: str | None, rank: int) -> None:
        """parent: the folder in which it is made; None: the system's temporary folder."""
        try:
            if parent is None:
                self.path, held = make_temporary_folder(STATES)
            else:
                self.path = Path(parent, f"minidist-rank{rank}")  # our own name: any files there are removed
                make_own_folder(self.path)
                held = lock(self.path)
            weakref.finalize(self, os.close, held)
            for left in self.path.iterdir():  # files of a run that was killed
                remove(str(left))
            (self.path / "writable").touch()
            (self.path / "writable").unlink()
            unix.allow_more_files()  # an array in a file keeps one open
        except BlockingIOError:
            raise UsageError(
                f"{option} {parent}: another run is at work there, or another engine: give each a folder"
            ) from None
        except OSError as error:
            raise UsageError(
                f"{option} {parent or tempfile.gettempdir()}: cannot write there: {error.strerror}"
            ) from None
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        processes.to_remove.append(self.remove)

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *failure: object) -> None:
        """Remove the folder, however the run has ended."""
        self.remove()


class Files:
    """Arrays of a pool, each in a file of its own."""

    def __init__(self, folder: Folder, pool: Pool) -> None:
        self.folder, self.pool = folder, pool

    def empty(self, kind: str, name: str, size: int, dtype: np.typing.DTypeLike) -> Array:
        """An array (size,) whose values are in a file: a view of the file (mmap), so that any part can be read as from
        any other array. Raises OutOfMemory if the pool has no room for it, FileFailed if the disk has none."""
        path = self.folder.path / name.replace(" ", "-")
        with on_disk("write", path):
            array = np.memmap(path, dtype, "w+", shape=(size,))  # a hole, until it is written
        return self.pool.hold(kind, array)


class DiskLink(Link):
    """Between host memory and files. bandwidth: bytes per second; if given, waiting throttles the link to it."""

    def __init__(self, upper: Pool, lower: Pool, bandwidth: float | None = None) -> None:
        super().__init__(upper, lower)
        self.bandwidth = bandwidth

    def copy(self, array: Array, out: Array) -> None:
        """Copy between memory and a file. Raises FileFailed if the disk fails."""
        if self.bandwidth:
            time.sleep(array.nbytes / self.bandwidth)
        in_file, in_memory = (out, array) if isinstance(out, np.memmap) else (array, out)
        path, place = place_of(in_file)
        rest = in_memory.view(np.uint8).data  # bytes, because a buffer supports neither float16 nor bfloat16
        with on_disk("write" if in_file is out else "read", path), open(path, "r+b", buffering=0) as file:
            file.seek(place)
            while rest:
                done = file.write(rest) if in_file is out else file.readinto(rest)
                if not done:
                    raise OSError(f"it ends after {file.tell():,} bytes")
                rest = rest[done:]


def place_of(array: Array) -> tuple[str, int]:
    """The file of an array, or of a part of an array, and its offset in the file in bytes."""
    whole = owner_of(array)
    assert isinstance(whole, np.memmap)
    first, here = (each.__array_interface__["data"][0] for each in (whole, array))
    return str(whole.filename), here - first


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
