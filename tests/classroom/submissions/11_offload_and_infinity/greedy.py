"""Takes one node after the other to the host, as long as it pays."""
# loses: best_placements, best_placements_several
# says: on the host sends \d+ bytes|is missing

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray


def best_placements(sizes, edges, on_device):
    def sent(host):
        return sum(nbytes for start, end, nbytes in edges if (start in host) != (end in host))

    host = frozenset([max((node for node in sizes if node != on_device), key=lambda node: sizes[node])])
    while True:
        larger = [host | {node} for node in sizes if node != on_device and node not in host]
        better = [each for each in larger if sent(each) <= sent(host)]
        if not better:
            return [host]
        host = min(better, key=sent)


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
