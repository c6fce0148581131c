"""What the graded parts do with a student's functions, in a process of its own. No points are given here."""

import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from minidist.classroom.grading.ranks import number, peak_memory, returned, whole
from minidist.classroom.notebook.slow_disk import SlowDisk
from minidist.mpi.comm import Comm

Array = np.ndarray

# ---- placements ------------------------------------------------------------------------------------------------------


def place(
    comm: Comm, exercise: ModuleType, _: None, sizes: Mapping[str, int], edges: list[list[Any]], on_device: str
) -> Any:
    """The placements that are returned, each a sorted list of nodes, or the name of a type."""
    value = exercise.best_placements(dict(sizes), [tuple(edge) for edge in edges], on_device)
    return list_of(value)


def list_of(value: Any) -> Any:
    """A collection of collections of names, sorted; of what is none, the name of a type."""
    if not isinstance(value, list | tuple | set | frozenset):
        return type(value).__name__
    return [sorted(map(str, each)) if isinstance(each, list | tuple | set | frozenset) else str(each) for each in value]


# ---- states from a disk ----------------------------------------------------------------------------------------------


def updating(comm: Comm, exercise: ModuleType, states: Array, read: float, write: float, took: float) -> dict[str, Any]:
    """update_all of the states (units, n): an update adds 1, and doubles. The files afterwards, which units were
    updated and moved, the first use of an array that is no room, the first room that was not left alone, what was not
    waited for, and the time of all."""
    rooms = [np.full(states.shape[1], np.nan) for _ in range(3)]
    disk, updated = SlowDisk(list(states), read, write, list(rooms)), []

    def update(i: int, room: Array) -> None:
        disk.work("update", i, took, room)
        room[...] = 2 * (room + 1)
        updated.append(int(i))

    exercise.update_all(disk, len(states), rooms, update)
    left = [[move.what, move.number] for move in disk.under_way]
    elsewhere, conflicts = ([list(each) for each in found[:1]] for found in (disk.elsewhere, disk.conflicts))
    moved = {what: [took.number for took in disk.log if took.what == what] for what in ("read", "write")}
    return {
        **{"files": disk.files, "updated": updated, "moved": moved},
        **{"elsewhere": elsewhere, "conflicts": conflicts, "left": left, "time": disk.now},
    }


# ---- a late update ---------------------------------------------------------------------------------------------------


class Update:
    """One that was submitted: it runs at once, or when the program waits for it."""

    def __init__(self, host: "Host", run: Callable[[], Array], number: int) -> None:
        self.host, self.run, self.number = host, run, number
        self.value: Any = None
        if not host.late:
            self.begin()

    def begin(self) -> None:
        self.host.running = self.number
        self.value = self.run()
        self.host.running = -1

    def result(self, timeout: float | None = None) -> Array:
        if self.value is None:
            self.begin()
        self.host.events.append(["waited for", self.number])
        return self.value


class Host:
    def __init__(self, late: bool) -> None:
        self.late = late
        self.events: list[list[Any]] = []
        self.submitted = 0
        self.running = -1  # the number of what runs now, of all that was submitted; -1: nothing does

    def submit(self, function: Callable[..., Array], *arguments: Any) -> Update:
        self.events.append(["submitted", self.submitted])
        self.submitted += 1
        return Update(self, lambda: function(*arguments), self.submitted - 1)


def train_late(comm: Comm, exercise: ModuleType, mine: list[Array], after: int, late: bool) -> dict[str, Any]:
    """train_delayed from mine[0], with the batches in mine[1]: the parameters and the gradient of each step, what was
    returned, and what happened in which order."""
    start, batches = mine
    host, seen, gradients = Host(late), [], []
    master, speed = start.copy(), np.zeros_like(start)

    def gradient(parameters: Array, batch: Array) -> Array:
        host.events.append(["gradient", len(seen)])
        seen.append(returned(parameters))
        g = slope(parameters, batch)
        gradients.append(g.copy())
        host.events.append(["gradient is there", len(seen) - 1])
        return g

    def update(g: Array) -> Array:
        host.events.append(["updated", host.running])
        speed[...] = 0.5 * speed + g
        master[...] -= 0.1 * speed
        return master.copy()

    value = exercise.train_delayed(host, start.copy(), gradient, update, list(batches), after)
    return {"seen": seen, "gradients": gradients, "returned": returned(value), "events": host.events}


def slope(parameters: Array, batch: Array) -> Array:
    """Some gradient, in which every change of the parameters is seen."""
    return np.sin(3 * parameters) + batch * parameters


# ---- a layer in tiles ------------------------------------------------------------------------------------------------


class Watched:
    """Tiles of a matrix; how many of them and of their gradients are there when one is fetched."""

    def __init__(self, w: Array, tiles: int) -> None:
        self.parts = np.split(w, tiles)
        self.tiles: list[weakref.ref] = []
        self.gradients: list[weakref.ref] = []
        self.fetched: list[list[int]] = []  # (tile, tiles there, gradients there)
        self.given: dict[int, Any] = {}

    def fetch(self, i: int) -> Array:
        held = [sum(reference() is not None for reference in kind) for kind in (self.tiles, self.gradients)]
        self.fetched.append([int(i), *held])
        tile = self.parts[i].copy()
        self.tiles.append(weakref.ref(tile))
        return tile

    def give(self, i: int, dw: Array) -> None:
        self.given[int(i)] = returned(dw)
        if isinstance(dw, np.ndarray):
            owner = dw if dw.base is None else dw.base
            self.gradients.append(weakref.ref(owner))


def backward_in_tiles(comm: Comm, exercise: ModuleType, mine: list[Array], tiles: int) -> dict[str, Any]:
    """tiled_backward for mine = [dy, x, W]."""
    dy, x, w = (array.copy() for array in mine)
    watched = Watched(w, tiles)
    value = exercise.tiled_backward(dy, x, watched.fetch, watched.give, tiles)
    given = [watched.given.get(i, "nothing") for i in range(tiles)]
    same = bool(np.array_equal(dy, mine[0]) and np.array_equal(x, mine[1]))
    return {"returned": returned(value), "given": given, "fetched": watched.fetched, "same": same}


def take_in_tiles(comm: Comm, exercise: ModuleType, mine: list[Array], tiles: int) -> int:
    """The most bytes that tiled_backward of mine = [dy, x, W] takes at a time, tiles and gradients included."""
    dy, x, w = mine
    parts = np.split(w, tiles)

    def fetch(i: int) -> Array:
        return parts[i].copy()

    def give(i: int, dw: Array) -> None:
        pass

    return peak_memory(lambda dy, x: exercise.tiled_backward(dy, x, fetch, give, tiles), dy, x)[1]


# ---- the notebook's gaps ---------------------------------------------------------------------------------------------


def count_moved(comm: Comm, exercise: ModuleType, edges: list[list[Any]], hosts: list[list[str]]) -> list[Any]:
    """moved, of several placements."""
    found = [exercise.moved([tuple(edge) for edge in edges], frozenset(host)) for host in hosts]
    return [whole(value) for value in found]


def all_placements(comm: Comm, exercise: ModuleType, nodes: list[str]) -> Any:
    return list_of(exercise.placements(list(nodes)))


def steps_delayed(comm: Comm, exercise: ModuleType, w: float, batches: list[float]) -> list[Any]:
    """delayed_step, several times: for each, the w that it returns, and what waits."""
    waiting, found = None, []
    for batch in batches:
        pair = exercise.delayed_step(w, waiting, batch, lambda w, b: w * w + b, lambda w, g: w - 0.1 * g)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            return [*found, type(pair).__name__]
        w, waiting = pair
        found.append([number(w), number(waiting)])
    return found


def forward_in_tiles(comm: Comm, exercise: ModuleType, mine: list[Array], tiles: int) -> dict[str, Any]:
    """tiled, for mine = [x, W]."""
    watched = Watched(mine[1], tiles)
    value = exercise.tiled(mine[0].copy(), watched.fetch, tiles)
    return {"returned": returned(value), "fetched": watched.fetched}
