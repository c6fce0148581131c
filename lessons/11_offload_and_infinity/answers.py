"""Lesson 11's own functions, which the notebook uses where a gap is open: look here after you have tried."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray


# ---- the gaps --------------------------------------------------------------------------------------------------------


def moved(edges: Sequence[tuple[str, str, int]], host: Collection[str]) -> int:
    return sum(nbytes for start, end, nbytes in edges if (start in host) != (end in host))


def placements(nodes: Sequence[str]) -> list[frozenset[str]]:
    found: list[frozenset[str]] = [frozenset()]
    for node in nodes:
        found += [host | {node} for host in found]
    return found


def delayed_step(w: Any, waiting: Any, batch: Any, gradient: Callable[..., Any], update: Callable[..., Any]) -> Any:
    fresh = gradient(w, batch)
    if waiting is not None:
        w = update(w, waiting)
    return w, fresh


def tiled(x: Array, fetch: Callable[[int], Array], tiles: int) -> Array:
    return np.concatenate([x @ fetch(i).T for i in range(tiles)], axis=1)


# ---- the exercise ----------------------------------------------------------------------------------------------------


def best_placements(
    sizes: Mapping[str, int], edges: Sequence[tuple[str, str, int]], on_device: str
) -> list[frozenset[str]]:
    free = [node for node in sizes if node != on_device]
    offloading = [host for host in placements(free) if any(sizes[node] for node in host)]
    least = min(moved(edges, host) for host in offloading)
    cheapest = [host for host in offloading if moved(edges, host) == least]
    saved = {host: sum(sizes[node] for node in host) for host in cheapest}
    return [host for host in cheapest if saved[host] == max(saved.values())]


def update_all(disk: Any, count: int, rooms: Sequence[Array], update: Callable[[int, Array], None]) -> None:
    reading, writing = disk.read(0, rooms[0]), deque[Any]()
    for i in range(count):
        reading.wait()
        if i + 1 < count:
            if len(writing) == 2:  # of unit i-2, which had the room
                writing.popleft().wait()
            reading = disk.read(i + 1, rooms[(i + 1) % 3])
        update(i, rooms[i % 3])
        writing.append(disk.write(i, rooms[i % 3]))
    for move in writing:
        move.wait()


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
        fresh = gradient(parameters, batch)
        if pending:
            parameters = pending.result()
        pending = host.submit(update, fresh)
        if step < after:
            parameters, pending = pending.result(), None
    return pending.result() if pending else parameters


def tiled_backward(
    dy: Array, x: Array, fetch: Callable[[int], Array], give: Callable[[int, Array], None], tiles: int
) -> Array:
    dx = np.zeros_like(x)
    for i, part in enumerate(np.split(dy, tiles, axis=1)):  # (n, out/tiles)
        weights = fetch(i)
        dx += part @ weights
        give(i, part.T @ x)
    return dx
