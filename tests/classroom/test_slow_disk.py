"""The lessons' disk on a clock: what arrives when, worked out by hand."""

import numpy as np
import pytest

from minidist.classroom.notebook.slow_disk import Conflict, SlowDisk


def test_what_is_read_arrives_at_the_end_of_its_time() -> None:
    disk, rooms = SlowDisk([np.full(2, 1.0), np.full(2, 2.0)], read=3), np.zeros((2, 2))
    first, second = disk.read(0, rooms[0]), disk.read(1, rooms[1])
    disk.work("wait", 0, 2.5)
    assert rooms.tolist() == [[0, 0], [0, 0]]
    first.wait()
    assert (disk.now, rooms.tolist()) == (3, [[1, 1], [0, 0]])
    second.wait()  # one read after the other
    assert (disk.now, rooms.tolist()) == (6, [[1, 1], [2, 2]])
    assert not disk.conflicts
    assert not disk.under_way


def test_a_write_takes_what_is_in_the_room_at_its_end_and_passes_a_read_by() -> None:
    disk, room, other = SlowDisk([np.zeros(1), np.ones(1)], read=4, write=2), np.array([5.0]), np.zeros(1)
    reading, writing = disk.read(1, other), disk.write(0, room)
    room[0] = 6  # too early
    writing.wait()
    assert (disk.now, disk.files[0].tolist()) == (2, [6])
    reading.wait()
    assert disk.now == 4
    assert [(took.what, took.begin, took.end) for took in disk.log] == [("read", 0, 4), ("write", 0, 2)]


def test_a_room_is_the_disks_until_somebody_has_waited() -> None:
    disk, room = SlowDisk([np.zeros(4)] * 3), np.zeros(4)
    reading = disk.read(0, room)
    disk.work("update", 0, 5, room[:2])  # a part of it, and the read is over by then: but nobody has asked
    assert disk.conflicts == [Conflict("update", 0, "read", 0)]
    reading.wait()
    disk.work("update", 0, 1, room)
    disk.write(2, room)
    assert len(disk.conflicts) == 1
    assert [(move.what, move.number) for move in disk.under_way] == [("write", 2)]
    with pytest.raises(IndexError, match="read of file 3: there are 3, from 0 on"):
        disk.read(3, room)


def test_a_disk_that_takes_no_time_has_done_it_when_it_is_asked() -> None:
    disk, room = SlowDisk([np.ones(1)], read=0, write=0), np.zeros(1)
    disk.read(0, room)
    assert (room[0], disk.now) == (1, 0)
    room[0] = 7
    disk.write(0, room)
    assert disk.files[0][0] == 7


def test_a_disk_that_knows_its_rooms_says_what_was_done_elsewhere() -> None:
    rooms, own = [np.zeros(2), np.zeros(2)], np.zeros(2)
    disk = SlowDisk([np.ones(2)] * 2, read=0, write=0, rooms=rooms)
    disk.read(0, rooms[1][:]).wait()
    disk.work("update", 0, 1, rooms[1])
    assert not disk.elsewhere
    disk.read(1, own).wait()
    disk.work("update", 1, 1, rooms[0].copy())
    assert disk.elsewhere == [("read", 1), ("update", 1)]
    assert not disk.conflicts
