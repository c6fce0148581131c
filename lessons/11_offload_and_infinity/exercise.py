"""Exercise 11: what goes where, and when.

Fill in the four functions; `pytest lessons/11_offload_and_infinity` says how many points they earn. You need only NumPy
and Python's standard library. No function needs another one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray


# ---- what goes where -------------------------------------------------------------------------------------------------


def best_placements(
    sizes: Mapping[str, int], edges: Sequence[tuple[str, str, int]], on_device: str
) -> list[frozenset[str]]:
    """The best ways to place a data-flow graph on a device and a host: for each way, the nodes that are on the host.

    sizes      for each node, the bytes that it keeps; a node that is an operation keeps none
    edges      (from, to, bytes that flow in a step); those between device and host go over the link
    on_device  a node that must stay on the device; each other node may be on either side

    Consider all placements that take at least one byte off the device. Keep those that send the fewest bytes over the
    link; among these, keep those that leave the fewest bytes on the device. If several are equally good, return all of
    them, in any order.
    """
    raise NotImplementedError


# ---- when: states from a disk ----------------------------------------------------------------------------------------


def update_all(disk: Any, count: int, rooms: Sequence[Array], update: Callable[[int, Array], None]) -> None:
    """Update the states of units 0, 1, ..., count-1. They are on the disk, and memory has three rooms (buffers).

    disk.read(i, room)    begins to read the states of unit i into a room; returns a move
    disk.write(i, room)   begins to write the contents of a room to the file of unit i; returns a move
    move.wait()           returns when the move is over
    update(i, room)       updates the states in a room; returns when it is done

    From the beginning of a move until its wait() has returned, its room belongs to the disk: do not update it and do
    not begin another move with it. When this function returns, it has waited for every move.

    While unit i is updated, unit i+1 is being read and unit i-1 is being written. So if neither a read nor a write
    takes longer than an update, everything takes the time of one read, `count` updates and one write. count >= 1.
    """
    raise NotImplementedError


# ---- when: an update that is late ------------------------------------------------------------------------------------


def train_delayed(
    host: Any,
    parameters: Array,
    gradient: Callable[[Array, Any], Array],
    update: Callable[[Array], Array],
    batches: Sequence[Any],
    after: int,
) -> Array:
    """Train with one batch a step, and return the parameters when the gradient of every batch has been used.

    gradient(parameters, batch)   a forward and a backward on the device: returns the gradient
    update(g)                     an update on the host, which has a master copy: returns the new parameters
    host.submit(update, g)        begins update(g), and returns an object at once; its .result() waits for the update
                                  and returns the new parameters. (Python's ThreadPoolExecutor(1) is such a host.)

    Steps count from 0. Up to step after-1, each step's update is complete before the next step begins. From step
    `after` on, a step's update runs while the next step's gradient is computed with the current parameters, which lack
    that update. Only one update runs at a time, in the order of the steps. `after` may be 0, or larger than the number
    of steps.
    """
    raise NotImplementedError


# ---- a layer that is too large ---------------------------------------------------------------------------------------


def tiled_backward(
    dy: Array, x: Array, fetch: Callable[[int], Array], give: Callable[[int, Array], None], tiles: int
) -> Array:
    """The backward of y = x Wᵀ, with x (n, in) and W (out, in): returns the gradient of x (n, in).

    Only one tile of W is in memory at a time.

    dy (n, out)       the gradient of y; `tiles` divides `out`
    fetch(i)          returns tile i of W: rows i·out/tiles to (i+1)·out/tiles, (out/tiles, in)
    give(i, dw)       takes the gradient of tile i (out/tiles, in), and moves it away

    Fetch each tile once. Before you fetch a tile, give away the gradient of the previous one. (Your variables may still
    refer to the previous tile and its gradient, but to nothing older.)
    """
    raise NotImplementedError
