"""Arrays in a file: what is moved arrives, is counted, by the link and by the kernel; and nothing is left of it."""

import gc
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidist import Stopped, UsageError
from minidist.memory.files import ALIGNED, BLOCK, Ahead, DiskLink, Mover, Rooms, SwapFile, place_of, wait
from minidist.memory.link import LinkError
from minidist.memory.pool import OutOfMemory, Pool

SIZES = (1, 7, BLOCK // 8, BLOCK // 4 + 1, 3 * BLOCK)


class Place:
    """Two pools, the link between them, and a file."""

    def __init__(self, parent: Path, capacity: int | None = None, threads: int = 2) -> None:
        self.host, self.disk = Pool("host"), Pool("disk", capacity)
        self.swap = SwapFile("--disk", str(parent))
        self.link = DiskLink(self.host, self.disk, self.swap)
        self.mover = Mover(self.link, threads)

    def hold(self, array: np.ndarray) -> np.ndarray:
        return self.host.hold("optimizer", array)

    def empty(self, size: int, dtype: np.typing.DTypeLike) -> np.ndarray:
        return self.swap.empty(self.disk, "optimizer", size, dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_what_goes_down_comes_up_in_blocks(size: int, dtype: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    given = place.hold(np.random.default_rng(size).standard_normal(size).astype(dtype))
    file = place.empty(size, dtype)
    before = place.mover.kernel()
    wait(place.mover.down("optimizer", given, out=file))
    assert os.pread(place.swap.file.fileno(), given.nbytes, 0) == given.tobytes()
    back = place.hold(np.zeros(size, dtype))
    wait(place.mover.up("optimizer", file, out=back))
    np.testing.assert_array_equal(back, given)
    np.testing.assert_array_equal(file, given)  # as a view of the file sees it
    once = {"bytes": given.nbytes, "moves": -(-given.nbytes // BLOCK)}
    assert place.link.by_phase() == {"host to disk": {"optimizer": once}, "disk to host": {"optimizer": once}}
    if before:  # where the kernel counts
        since = place.mover.kernel_since(before)
        assert (since["kernel read"], since["kernel written"]) == (given.nbytes, given.nbytes)
        assert since["process read"] >= given.nbytes + since["looked"]  # and the whole file, above
    assert place.disk.held["optimizer"] == given.nbytes


def test_a_part_of_a_file_is_at_its_place(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.empty(1, np.uint8)
    file = place.empty(100, np.float32)
    file[...] = np.arange(100)
    out = place.hold(np.zeros(10, np.float32))
    place.link.up("x", file[30:90][5:15], out=out)
    np.testing.assert_array_equal(out, np.arange(35, 45))
    assert place_of(file[30:90][5:15]) == ALIGNED + 4 * 35
    place.link.down("x", out, out=file[:10])
    np.testing.assert_array_equal(file[:12], [*range(35, 45), 10, 11])


def test_a_disk_pool_has_a_capacity(tmp_path: Path) -> None:
    place = Place(tmp_path, capacity=1000)
    kept = place.empty(100, np.float64)
    with pytest.raises(OutOfMemory, match="201 bytes of optimizer do not fit on the disk, which has 1,000 and holds"):
        place.empty(201, np.uint8)
    del kept
    place.empty(1000, np.uint8)


def test_what_fails_in_a_thread_is_raised(tmp_path: Path) -> None:
    place = Place(tmp_path)
    file = place.empty(3 * BLOCK, np.uint8)
    with pytest.raises(LinkError, match="is not held on the host"):
        wait(place.mover.up("x", file, out=np.zeros(3 * BLOCK, np.uint8)))
    place.swap.file.truncate(BLOCK + 5)
    with pytest.raises(Stopped, match=f"^cannot read a file in {tmp_path}: it ends after {BLOCK + 5:,} bytes$"):
        wait(place.mover.up("x", file, out=place.hold(np.zeros(3 * BLOCK, np.uint8))))
    os.dup2(os.open(os.devnull, os.O_RDONLY), place.swap.file.fileno())
    with pytest.raises(Stopped, match=f"^cannot write a file in {tmp_path}: Bad file descriptor$"):
        wait(place.mover.down("x", place.hold(np.zeros(3 * BLOCK, np.uint8)), out=file))


KILLED = """
import os, signal, sys
import numpy as np
from minidist.memory.files import SwapFile
from minidist.memory.pool import Pool
swap = SwapFile("--disk", sys.argv[1])
swap.empty(Pool("disk"), "optimizer", 1000, np.uint8)[...] = 1
os.kill(os.getpid(), signal.SIGKILL)
"""
FULL = """
import resource, sys
import numpy as np
from minidist.memory.files import SwapFile
from minidist.memory.pool import Pool
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
swap = SwapFile("--disk", sys.argv[1])
swap.empty(Pool("disk"), "optimizer", 1000, np.uint8)
try:
    swap.empty(Pool("disk"), "optimizer", 1, np.uint8)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_disk_without_room_is_a_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"FileFailed cannot write a file in {tmp_path}: File too large\n"
    assert list(tmp_path.iterdir()) == []


# ---- the file --------------------------------------------------------------------------------------------------------


def test_a_file_has_no_name_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing is left of it whatever ends its process, and two runs may use one folder."""
    parent = tmp_path / "not" / "there"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    swaps = [SwapFile("--disk", folder) for folder in (str(parent), str(parent), None)]
    arrays = [swap.empty(Pool("disk"), "optimizer", 1000, np.float32) for swap in swaps]
    for number, array in enumerate(arrays):
        array[...] = number
    assert [array.sum() for array in arrays] == [0, 1000, 2000]
    assert [*parent.iterdir()] == []
    assert [*tmp_path.iterdir()] == [tmp_path / "not"]


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert [*tmp_path.iterdir()] == []


def test_the_disk_has_its_room_back_at_the_end_of_the_context(tmp_path: Path) -> None:
    with SwapFile("--disk", str(tmp_path)) as swap:
        swap.empty(Pool("disk"), "optimizer", 10, np.float32)
        assert swap.size == 48
    assert swap.file.closed


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"^--disk {tmp_path / name}: cannot write there: "):
        SwapFile("--disk", str(tmp_path / name))


def test_nothing_outlives_its_owner(tmp_path: Path) -> None:
    """Neither threads nor files, and without the cycle collector."""
    gc.disable()
    try:
        place: Any = Place(tmp_path)
        held = place.swap.file
        file = place.empty(10, np.float32)
        wait(place.mover.down("x", place.hold(np.zeros(10, np.float32)), out=file))
        threads = list(place.mover.threads._threads)
        disk = place.disk
        del file, place
        for thread in threads:
            thread.join(10)
        assert threads
        assert not any(thread.is_alive() for thread in threads)
        assert disk.held["all"] == 0
        assert held.closed
    finally:
        gc.enable()


# ---- rooms -----------------------------------------------------------------------------------------------------------


def test_rooms_are_used_in_turn_and_waited_for() -> None:
    pool = Pool("host")
    rooms = Rooms(pool, "optimizer", 2, 10, np.float32)
    assert pool.held["optimizer"] == 80
    one, other = rooms.take(3), rooms.take(10)
    move: Future[np.ndarray] = Future()
    with one as first, other as second:
        assert (first.size, second.size) == (3, 10)
        assert not np.shares_memory(first, second)
        one.leaving = [move]
    threading.Timer(0.05, move.set_result, [first]).start()
    rooms.give_back(other)  # once more: it is not taken
    assert len(rooms.free) == 2
    again = rooms.take(10)  # of the two the one that has waited longest: the other is given back first
    third = rooms.take(10)
    assert move.done()
    assert {np.shares_memory(first, room.array) for room in (again, third)} == {True, False}
    assert rooms.overwritten == 0
    fifth = rooms.take(5)  # none has been returned
    assert rooms.overwritten == 40
    assert np.shares_memory(fifth.array, again.array)
    with again:
        pass  # it was lost, and cannot be given back
    assert not rooms.free
    rooms.clear()
    assert len(rooms.free) == 2


def test_a_room_is_used_when_all_has_arrived() -> None:
    rooms = Rooms(Pool("host"), "optimizer", 1, 10, np.float32)
    move: Future[np.ndarray] = Future()
    room = rooms.take(1)
    room.arriving = [move]
    threading.Timer(0.05, move.set_result, [room.array]).start()
    with room:
        assert move.done()


def test_items_are_made_one_ahead_of_their_use() -> None:
    made: list[int] = []

    def make(i: int) -> int:
        made.append(i)
        return i

    inner = Ahead(map(make, range(4)))
    assert made == [0]
    used = [(i, len(made)) for i in inner]
    assert used == [(0, 2), (1, 3), (2, 4), (3, 4)]
    assert [*Ahead[int]()] == []
    made.clear()
    outer = Ahead(Ahead(map(make, range(4))))
    assert made == [0, 1]
    assert [*outer] == [0, 1, 2, 3]


def test_a_move_that_failed_is_raised_where_its_room_is_taken() -> None:
    rooms = Rooms(Pool("host"), "optimizer", 1, 10, np.float32)
    move: Future[np.ndarray] = Future()
    move.set_exception(Stopped("the disk is gone"))
    with (room := rooms.take(1)):
        room.leaving = [move]
    with pytest.raises(Stopped, match="the disk is gone"):
        rooms.settle()
    with pytest.raises(Stopped, match="the disk is gone"):
        rooms.take(1)


def test_as_many_arrays_as_the_system_lets_a_process_have(tmp_path: Path) -> None:
    """More than it has open files at first, as from a shell with `ulimit -Sn 64`."""
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
import numpy as np
from minidist.memory.files import SwapFile
from minidist.memory.pool import Pool
swap = SwapFile("--disk", {str(tmp_path)!r})
arrays = [swap.empty(Pool("disk"), "optimizer", 10, np.float32) for _ in range(100)]
print(len(arrays))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("100\n", "")


MANY_THREADS = """
import threading
from minidist.memory.files import Mover
mover, everyone = Mover(None, 20), threading.Barrier(20)
for done in [mover.threads.submit(lambda: (everyone.wait(), bytes(10_000), everyone.wait())) for _ in range(20)]:
    done.result()
print(mover.kernel()["kernel read"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts what a thread reads")
def test_threads_read_nothing_but_what_they_move() -> None:
    """Twenty that allocate at the same time: the C library gives each a part of memory, by the number of cores."""
    done = subprocess.run([sys.executable, "-c", MANY_THREADS], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
