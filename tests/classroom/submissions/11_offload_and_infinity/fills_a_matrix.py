"""Puts the tiles into a matrix of its own, and cuts the gradient of all out of one."""
# loses: tiled_backward_memory
# says: in 16 tiles: it takes \d{3},\d{3} bytes at a time, where a tile has 8,192

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray


def best_placements(
    sizes: Mapping[str, int], edges: Sequence[tuple[str, str, int]], on_device: str
) -> list[frozenset[str]]:
    hosts = [frozenset[str]()]
    for node in sizes:
        if node != on_device:
            hosts += [host | {node} for host in hosts]
    ways = []
    for host in hosts:
        saved = sum(sizes[node] for node in host)
        sent = sum(nbytes for a, b, nbytes in edges if (a in host) != (b in host))
        if saved > 0:
            ways.append((sent, -saved, host))
    least = min(ways)[:2]
    return [host for sent, saved, host in ways if (sent, saved) == least]


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


def train_delayed(
    host: Any,
    parameters: Array,
    gradient: Callable[[Array, Any], Array],
    update: Callable[[Array], Array],
    batches: Sequence[Any],
    after: int,
) -> Array:
    pending = None
    for step, batch in enumerate(batches):
        g = gradient(parameters, batch)
        if pending is not None:
            parameters = pending.result()
            pending = None
        if step < after:
            parameters = update(g)
        else:
            pending = host.submit(update, g)
    if pending is not None:
        parameters = pending.result()
    return parameters


def tiled_backward(dy, x, fetch, give, tiles):
    rows = dy.shape[1] // tiles
    weights = np.empty((dy.shape[1], x.shape[1]))
    for i in range(tiles):
        weights[i * rows : (i + 1) * rows] = fetch(i)
    dw = dy.T @ x
    for i in range(tiles):
        give(i, dw[i * rows : (i + 1) * rows])
    return dy @ weights
