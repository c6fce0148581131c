"""A link between two pools: what it moves arrives whole and is counted; what is not where it should be stays."""

import threading
from typing import Any

import numpy as np
import pytest

from minidist.memory.link import Link, LinkError
from minidist.memory.pool import OutOfMemory, Pool


def memories(**capacity: int) -> tuple[Pool, Pool, Link]:
    device = Pool("device", capacity.get("device"))
    host = Pool("host", capacity.get("host"), beside=device)
    return device, host, Link(device, host)


def test_down_and_up_again() -> None:
    device, host, link = memories()
    values = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float16)
    there = device.hold("gradients", values.copy())
    here = host.zeros("gradients", (3, 5), np.float16)
    assert link.down("gradients", there, out=here) is here
    np.testing.assert_array_equal(here, values)
    there.fill(0)
    link.up("parameters", here[1:], out=there[:2])  # views count as what they show
    np.testing.assert_array_equal(there[:2], values[1:])
    assert not there[2:].any()
    assert (device.held["gradients"], host.held["gradients"]) == (30, 30)  # neither pool has got what is the other's


def test_bytes_are_counted_by_phase_and_direction() -> None:
    device, host, link = memories()
    there, here = device.zeros("bucket", 10, np.float32), host.zeros("optimizer", 10, np.float32)
    for start in (0, 4):
        link.down("gradients", there[start : start + 4], out=here[:4])
    link.down("activations", there, out=here)
    link.up("gradients", here[:1], out=there[:1])
    assert link.by_phase() == {
        "device to host": {"gradients": {"bytes": 32, "moves": 2}, "activations": {"bytes": 40, "moves": 1}},
        "host to device": {"gradients": {"bytes": 4, "moves": 1}},
    }
    link.reset()
    assert link.by_phase() == {}
    link.up("gradients", here[:0], out=there[:0])  # a shard may be empty
    assert link.by_phase() == {"host to device": {"gradients": {"bytes": 0, "moves": 1}}}


def test_host_and_disk_have_a_link_likewise() -> None:
    host, disk = Pool("host"), Pool("disk")
    link = Link(host, disk)
    link.down("optimizer", host.zeros("optimizer", 4, np.uint8), out=disk.zeros("optimizer", 4, np.uint8))
    assert link.by_phase() == {"host to disk": {"optimizer": {"bytes": 4, "moves": 1}}}


WRONG: list[tuple[str, Any, str]] = [
    ("from elsewhere", lambda d, h: (np.zeros(4), h.zeros("optimizer", 4, "f8")), "32 bytes is not held on the device"),
    ("to elsewhere", lambda d, h: (d.zeros("bucket", 4, "f8"), np.zeros(4)), "32 bytes is not held on the host"),
    ("the wrong way", lambda d, h: (h.zeros("bucket", 4, "f8"), d.zeros("bucket", 4, "f8")), "not held on the device"),
    (
        "another dtype",
        lambda d, h: (d.zeros("bucket", 4, "f4"), h.zeros("optimizer", 4, "f2")),
        r"gradients: float32 \(4,\) on the device does not fit into float16 \(4,\) on the host",
    ),
    (
        "another shape",  # which NumPy would stretch
        lambda d, h: (d.zeros("bucket", 1, "f4"), h.zeros("optimizer", 4, "f4")),
        r"gradients: float32 \(1,\) on the device does not fit into float32 \(4,\) on the host",
    ),
]


@pytest.mark.parametrize(("make", "says"), [wrong[1:] for wrong in WRONG], ids=[wrong[0] for wrong in WRONG])
def test_what_is_wrong_is_said_and_nothing_moves(make: Any, says: str) -> None:
    device, host, link = memories()
    array, out = make(device, host)
    out += 7
    with pytest.raises(LinkError, match=says):
        link.down("gradients", array, out=out)
    assert (out == 7).all()
    assert link.by_phase() == {}


def test_a_pool_has_what_was_named_in_it_while_it_is_there() -> None:
    device, host, _ = memories()
    array = device.zeros("bucket", 6, np.uint8)
    assert device.has(array[2:].reshape(2, 2))
    assert not host.has(array)
    assert not device.has(array.copy())
    for _ in range(100):  # another one in its place, with its id
        del array
        array = np.zeros(6, np.uint8)
        assert not device.has(array)


def test_what_does_not_fit_on_the_host_is_said_with_what_is_being_done() -> None:
    device, host, _ = memories(host=100)
    device.doing = "in block3, backward"
    _states = host.zeros("optimizer", 60, np.uint8)
    with pytest.raises(OutOfMemory) as raised:
        host.zeros("gradients", 41, np.uint8)
    assert str(raised.value) == (
        "out of memory in block3, backward: 41 bytes of gradients do not fit on the host, which has 100 and holds"
        " optimizer 60"
    )


def test_threads_move_at_the_same_time() -> None:
    device, host, link = memories()
    start, threads = threading.Barrier(4), []

    def work(phase: str) -> None:
        there, here = device.zeros("bucket", 8, np.uint8), host.zeros("optimizer", 8, np.uint8)
        start.wait()
        for _ in range(500):
            link.down(phase, there, out=here)
            link.up("all", here, out=there)

    for i in range(4):
        threads.append(threading.Thread(target=work, args=(f"thread {i}",)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    moved = link.by_phase()
    assert moved["host to device"] == {"all": {"bytes": 4 * 500 * 8, "moves": 4 * 500}}
    assert moved["device to host"] == {f"thread {i}": {"bytes": 500 * 8, "moves": 500} for i in range(4)}
