"""Two functions of four."""
# keeps: best_placements, best_placements_several, tiled_backward, tiled_backward_memory
# says: in update_all is not written yet
# says: in train_delayed is not written yet

from collections.abc import Callable, Mapping, Sequence

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


def update_all(disk, count, rooms, update):
    raise NotImplementedError


def train_delayed(host, parameters, gradient, update, batches, after):
    raise NotImplementedError


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
