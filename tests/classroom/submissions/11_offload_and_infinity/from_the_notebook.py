"""The gaps of the notebook, copied: whoever moves least, and is not empty."""
# loses: best_placements, best_placements_several, train_delayed_beside, train_delayed_end
# says: on the host sends \d+ bytes and leaves \d+ on the device; {.+} sends
# says: the update with the gradient of step 0 has not been submitted

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray


def placements(nodes):
    return [frozenset(some) for k in range(len(nodes) + 1) for some in itertools.combinations(nodes, k)]


def moved(edges, host):
    return sum(nbytes for start, end, nbytes in edges if (start in host) != (end in host))


def best_placements(sizes, edges, on_device):
    hosts = [host for host in placements([node for node in sizes if node != on_device]) if host]
    return [min(hosts, key=lambda host: moved(edges, host))]


def update_all(disk: Any, count: int, rooms: Sequence[Array], update: Callable[[int, Array], None]) -> None:
    reads = {0: disk.read(0, rooms[0])}
    writes = {}
    for i in range(count):
        room = rooms[i % 3]
        if i + 1 < count:
            if i >= 2:
                writes.pop(i - 2).wait()
            reads[i + 1] = disk.read(i + 1, rooms[(i + 1) % 3])
        reads.pop(i).wait()
        update(i, room)
        writes[i] = disk.write(i, room)
    for write in writes.values():
        write.wait()


def delayed_step(w, waiting, batch, gradient, update):
    fresh = gradient(w, batch)
    if waiting is not None:
        w = update(waiting)
    return w, fresh


def train_delayed(host, parameters, gradient, update, batches, after):
    waiting = None
    for step, batch in enumerate(batches):
        if step < after:
            parameters = update(gradient(parameters, batch))
        else:
            parameters, waiting = delayed_step(parameters, waiting, batch, gradient, update)
    return parameters


def tiled_backward(
    dy: Array, x: Array, fetch: Callable[[int], Array], give: Callable[[int, Array], None], tiles: int
) -> Array:
    dx = np.zeros_like(x)
    rows = dy.shape[1] // tiles
    for i in range(tiles):
        part = dy[:, i * rows : (i + 1) * rows]
        weights = fetch(i)
        dx += part @ weights
        give(i, part.T @ x)
        del weights
    return dx
