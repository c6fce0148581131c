"""What lesson 11's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from minidist.classroom.notebook.slow_disk import SlowDisk
from minidist.engine import Settings
from minidist.memory.files import SwapFile
from minidist.memory.pool import NEEDED, OutOfMemory, Pool
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt

Array = np.ndarray


def train_two_steps(
    make: Any, model: dict[str, Any], tokens: Array, comm: Comm, limit: int | None = None
) -> dict[str, Any]:
    """Train two steps with the engine `make`. Returns the most bytes that this rank held, {memory: bytes}; the bytes
    that the second step moved, {"device to host: phase": bytes, ...}; and its loss."""
    disk = (SwapFile("--disk", None),) if "Infinity" in make.__name__ else ()
    engine = make(gpt(GPTConfig(**model)), Settings(capacity=limit, recompute="full"), comm, *disk)
    for _ in range(2):
        for link in engine.links:
            link.reset()
        loss = engine.forward(tokens[:, :-1], tokens[:, 1:])
        engine.backward(loss)
        engine.step()
    moved = {}
    for link in engine.links:
        for way, phases in link.by_phase().items():
            moved |= {f"{way}: {phase}": counted["bytes"] for phase, counted in phases.items()}
    held = {pool.name: pool.peak[NEEDED] for pool in engine.pools}
    return {"held": held, "moved": moved, "loss": loss.value}


def learn_to_count(engine: Any, steps: int) -> tuple[list[float], float]:
    """Train on sequences in which each number is 7 more than the one before: losses, and the last step's time."""
    losses, ends = [], []
    for step in range(steps):
        first = np.random.default_rng(step).integers(0, 64, (4, 1))
        batch = (first + 7 * np.arange(33)) % 64
        loss = engine.forward(batch[:, :-1], batch[:, 1:])
        engine.backward(loss)
        engine.step()
        losses.append(loss.value)
        ends.append(engine.clock.now)
    return losses, ends[-1] - ends[-2]


LAYERS, WIDTH = 6, 16  # of the network whose weights are on a disk
Arriving = Callable[[SlowDisk, list[int]], Iterator[Array]]


def multiply_in_halves(disk: SlowDisk, a: Array, b: Array) -> Array:
    """a @ b in one unit of time: its left half at the beginning, its right half at the end."""
    half = b.shape[1] // 2
    left = a @ b[:, :half]
    disk.work("compute", 0, 1.0)
    return np.hstack([left, a @ b[:, half:]])


def run_passes(weights: list[Array], read: float, arriving: Arriving) -> tuple[float, list[Array], float]:
    """Loss, gradients, and the time that they take, if the disk takes `read` for a layer."""
    random = np.random.default_rng(0)
    x = random.standard_normal((32, WIDTH))
    y = np.tanh(x @ random.standard_normal((WIDTH, WIDTH)) / 4)
    disk, order, h = SlowDisk(weights, read=read), list(range(LAYERS)), [x]
    for w in arriving(disk, order):
        h.append(np.tanh(multiply_in_halves(disk, h[-1], w)))
    dh, gradients = (h[-1] - y) / y.size, [np.zeros(0)] * LAYERS
    for i, w in zip(order[::-1], arriving(disk, order[::-1]), strict=False):  # nothing is read ahead after the last
        dz = dh * (1 - h[i + 1] ** 2)
        gradients[i] = h[i].T @ dz
        dh = multiply_in_halves(disk, dz, w.T)
    return float(((h[-1] - y) ** 2).mean() / 2), gradients, disk.now


def train_from_disk(read: float, arriving: Arriving, steps: int = 300) -> tuple[list[float], Array, float]:
    """Losses, the first step's gradient, and the time that a step's passes take."""
    random = np.random.default_rng(1)
    weights = [0.9 * np.eye(WIDTH) + random.standard_normal((WIDTH, WIDTH)) / 8 for _ in range(LAYERS)]
    losses, first, took = [], [np.zeros(0)], 0.0
    for step in range(steps):
        loss, gradients, took = run_passes(weights, read, arriving)
        first = gradients if step == 0 else first
        weights = [w - 2.0 * g for w, g in zip(weights, gradients, strict=True)]
        losses.append(loss)
    return losses, np.concatenate([g.ravel() for g in first]), took


def find_widest(room: int, tiles: int, forward: Callable[..., Array], backward: Callable[..., Array]) -> int:
    """The widest layer, in steps of 16, whose forward and backward in tiles fit into this many bytes."""
    width = 16
    while True:
        device = Pool("device", room)
        x, dy = np.ones((1, width), np.float16), np.ones((1, 4 * width), np.float16)

        def fetch(i: int, device: Pool = device, width: int = width) -> Array:
            return device.zeros("gathered", (4 * width // tiles, width), np.float16)

        def give(i: int, dw: Array, device: Pool = device) -> None:
            device.hold("bucket", dw)

        try:
            forward(x, fetch, tiles)
            backward(dy, x, fetch, give, tiles)
        except OutOfMemory:
            return width - 16
        width += 16


def one_after_the_other(disk: Any, count: int, rooms: Sequence[Array], update: Callable[[int, Array], None]) -> None:
    """What `update_all` does, without any overlap."""
    for i in range(count):
        disk.read(i, rooms[0]).wait()
        update(i, rooms[0])
        disk.write(i, rooms[0]).wait()


def update_six_units(function: Callable[..., None], count: int = 6) -> SlowDisk:
    """The disk after update_all of six units: a read takes 3, an update 4, a write 3."""
    disk = SlowDisk(np.arange(2.0 * count).reshape(count, 2), read=3, write=3)

    def update(i: int, room: Array) -> None:
        disk.work("update", i, 4, room)
        room += 100

    function(disk, count, [np.zeros(2) for _ in range(3)], update)
    return disk


def descend(function: Callable[..., Array], after: int) -> list[float]:
    """Go down to the minimum of p²/2 by train_delayed, with a real thread as the host: the distance at each step."""
    way, master = [], np.array([1.0, -2.0])

    def gradient(p: Array, batch: float) -> Array:
        way.append(float(np.abs(p).sum()))
        return p * batch

    def update(g: Array) -> Array:
        master[...] -= 0.6 * g
        return master.copy()

    with ThreadPoolExecutor(1) as host:
        end = function(host, master.copy(), gradient, update, [1.0] * 8, after)
    return [*way, float(np.abs(end).sum())]
