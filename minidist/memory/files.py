"""A disk as a rank's third memory: arrays in files, the link to them, threads that move, and rooms that are reused.

    disk = Pool("disk")
    files, link = Files(folder, disk), DiskLink(host, disk)
    flat.master = files.empty("optimizer", "block3.master", size, dtype)       # stands for the file; holds no memory
    reading = mover.up("optimizer", flat.master, out=room)                     # begun, in threads, block by block
    wait(reading)

ZeRO-Infinity's offload engine has the same parts: requests that are cut into blocks, threads that make many of them at
a time, and a few buffers that are used over and over, because memory from which a device can be reached (pinned memory)
is scarce.

What goes through a link is read and written by system calls, so the kernel counts it as well: for each thread of its
own, in /proc/self/task/THREAD/io. Nothing here waits until a disk really has it: files last as long as a run does.
What is to outlast it is a checkpoint (`minidist/checkpoint.py`).
"""

import fcntl
import os
import resource
import shutil
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from minidist import Stopped, UsageError
from minidist.files import is_own_folder, make_own_folder, remove
from minidist.memory.kernel import Kernel
from minidist.memory.link import Link
from minidist.memory.pool import Array, Pool, owner_of

BLOCK = 1 << 16  # bytes that are read or written at a time
PREFIX = "minidist-states-"  # of folders in the system's folder for such things

T = TypeVar("T")
Moves = Sequence["Future[Array]"]  # of the blocks of an array: over when each of them is


# ---- folders and files -----------------------------------------------------------------------------------------------


class Folder:
    """A rank's own folder, which nobody else uses as long as this object lives. With it, or by `remove`, goes all that
    is in it; of a process that is killed the next one removes it.

    Raises UsageError for one that cannot be made or written, or in which another run is at work.
    """

    def __init__(self, option: str, parent: str | None, rank: int) -> None:
        """parent: in which it is made; None: the system's, for what is temporary."""
        try:
            if parent is None:
                self.path = Path(tempfile.mkdtemp(prefix="minidist-"))
            else:
                self.path = Path(parent, f"minidist-rank{rank}")  # a name of ours: what lies there is removed
                make_own_folder(self.path)
            if not lock(self.path, self):
                raise UsageError(
                    f"{option} {parent}: another run is at work there, or another engine: give each a folder"
                )
            if parent is None:
                self.path = self.path.rename(self.path.with_name(self.path.name.replace("minidist-", PREFIX)))
                sweep(self.path.parent)  # which takes what has this name and is not locked
            for left in self.path.iterdir():  # by a run that was killed
                remove(str(left))
            (self.path / "writable").touch()
            (self.path / "writable").unlink()
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # an array in a file keeps one open
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        except OSError as error:
            raise UsageError(
                f"{option} {parent or tempfile.gettempdir()}: cannot write there: {error.strerror}"
            ) from None
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *failure: object) -> None:
        """Nothing is left, however a run has ended."""
        self.remove()


def lock(path: Path, owner: object | None = None) -> bool:
    """Whether nobody has locked a folder. Then it is, for as long as `owner` lives; for nobody: not any more."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        return False
    if owner is None:
        os.close(folder)
    else:
        weakref.finalize(owner, os.close, folder)
    return True


def sweep(parent: Path) -> None:
    """Remove what runs that were killed have left among temporary files: this user's own, in which nobody works."""
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if is_own_folder(left) and lock(left):
                shutil.rmtree(left, ignore_errors=True)


class Files:
    """Arrays of a pool, each in a file of its own."""

    def __init__(self, folder: Folder, pool: Pool) -> None:
        self.folder, self.pool = folder, pool

    def empty(self, kind: str, name: str, size: int, dtype: np.typing.DTypeLike) -> Array:
        """An array (size,) whose values are in a file: a view of it (mmap), so that whoever must can read a part of it
        as of any other. Raises OutOfMemory if the pool has no room for it, Stopped if the disk has none."""
        path = self.folder.path / name.replace(" ", "-")
        try:
            array = np.memmap(path, dtype, "w+", shape=(size,))  # a hole, until it is written
        except OSError as error:
            raise Stopped(f"cannot write {path}: {error.strerror}") from None
        return self.pool.hold(kind, array)


class DiskLink(Link):
    """Between host memory and files. bandwidth: bytes a second that it is held down to, if at all, by waiting."""

    def __init__(self, upper: Pool, lower: Pool, bandwidth: float | None = None) -> None:
        super().__init__(upper, lower)
        self.bandwidth = bandwidth

    def copy(self, array: Array, out: Array) -> None:
        """Raises Stopped if the disk does not do it."""
        if self.bandwidth:
            time.sleep(array.nbytes / self.bandwidth)
        in_file, in_memory, transfer = (
            (out, array, os.pwritev) if isinstance(out, np.memmap) else (array, out, os.preadv)
        )
        path, place = place_of(in_file)
        rest = in_memory.view(np.uint8).data  # which knows no float16, nor bfloat16
        try:
            file = os.open(path, os.O_RDWR)
            try:
                while rest:
                    done = transfer(file, [rest], place)
                    if done == 0:
                        raise Stopped(f"cannot read {path}: it ends after {place:,} bytes")
                    rest, place = rest[done:], place + done
            finally:
                os.close(file)
        except OSError as error:
            verb = "write" if in_file is out else "read"
            raise Stopped(f"cannot {verb} {path}: {error.strerror}") from None


def place_of(array: Array) -> tuple[str, int]:
    """The file of an array that is in one, or of a part of it; and how many bytes of the file come before."""
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

    def up(self, phase: str, array: Array, out: Array) -> Moves:
        """Begin to move an array (n,) of the lower memory into `out`."""
        return [self.threads.submit(self.link.up, phase, *parts) for parts in in_blocks(array, out)]

    def down(self, phase: str, array: Array, out: Array) -> Moves:
        """Begin to move an array (n,) of the upper memory into `out`."""
        return [self.threads.submit(self.link.down, phase, *parts) for parts in in_blocks(array, out)]

    def kernel(self) -> dict[str, int]:
        """Bytes that the threads have read and written so far, whatever it was, as the kernel counts; and the whole
        process with them, of which so many in looks like this one. Nothing where it does not count."""
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
        """And since it counted that many."""
        return {way: nbytes - before[way] for way, nbytes in self.kernel().items() if way in before}


def in_blocks(array: Array, out: Array) -> Iterable[tuple[Array, Array]]:
    """Parts of both that belong together."""
    step = BLOCK // array.itemsize
    return ((array[start : start + step], out[start : start + step]) for start in range(0, array.size, step))


def wait(moves: Moves) -> None:
    """Until they are over. Raises what one of them has raised."""
    for move in moves:
        move.result()


# ---- rooms -----------------------------------------------------------------------------------------------------------


class Room:
    """One of some rooms, taken. It is used in a `with`, which waits until all has arrived in it, and gives it back."""

    def __init__(self, rooms: "Rooms", whole: Array, size: int) -> None:
        self.rooms, self.whole, self.array = rooms, whole, whole[:size]
        self.arriving: Moves = ()  # into it
        self.leaving: Moves = ()  # out of it: over before it is taken again

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
        self.overwritten = 0  # bytes of rooms that were taken a second time before they were given back

    def take(self, size: int) -> Room:
        """The room that was given back first, for an array (size,), when what leaves it has left. If no room has been
        returned, the one that was taken first is overwritten."""
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
        """Give all back, once what was under way to them has arrived."""
        for room in [*self.taken]:
            with room:
                pass

    def settle(self) -> None:
        """Wait for all that leaves rooms."""
        for _, leaving in self.free:
            wait(leaving)


class Ahead(Generic[T]):
    """An iterator whose items are made one ahead of their use: what makes an item sends for it."""

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
        """The next one, if there is one. Otherwise let go what makes them: it may refer to whoever has this."""
        for item in self.items:
            self.made.append(item)
            return
        self.items = iter(())
