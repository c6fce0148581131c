"""Exercise 11: what goes where, and when.

Fill in the four functions; `pytest lessons/11_offload_and_infinity` says how many points they earn. NumPy and Python's
own library are all that you need. None needs another one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray


# ---- what goes where -------------------------------------------------------------------------------------------------


def best_placements(
    sizes: Mapping[str, int], edges: Sequence[tuple[str, str, int]], on_device: str
) -> list[frozenset[str]]:
    """The best ways to place a data-flow graph on a device and a host: of each, the nodes that are on the host.

    sizes      of each node, the bytes that it keeps; a node of an operation keeps none
    edges      (from, to, bytes that flow in a step); those between device and host go over the link
    on_device  a node that must stay on the device; each other node may be on either

    Of all placements that take at least one byte off the device, take those that send the least over the link; of
    these, those that leave the fewest bytes on the device. If several are equally good, return all of them, in any
    order.
    """
    raise NotImplementedError


# ---- when: states from a disk ----------------------------------------------------------------------------------------


def update_all(disk: Any, count: int, rooms: Sequence[Array], update: Callable[[int, Array], None]) -> None:
    """Update the states of units 0, 1, ..., count-1. They are on the disk, and there are three rooms in memory.

    disk.read(i, room)    begins to bring the states of unit i into a room; returns a move
    disk.write(i, room)   begins to bring what is in a room into the file of unit i; returns a move
    move.wait()           returns when the move is over
    update(i, room)       updates what is in a room; returns when it is done

    From the beginning of a move until its wait() has returned, its room is the disk's: neither update it nor begin
    another move of it. When this function returns, every move has been waited for.

    While unit i is updated, unit i+1 is being read and unit i-1 is being written. So if a read takes no longer than an
    update, nor does a write, all of it takes the time of one read, `count` updates and one write. count >= 1.
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

    gradient(parameters, batch)   a forward and a backward on the device
    update(g)                     an update on the host, which has a master copy: returns the new parameters
    host.submit(update, g)        begins the same, and returns something at once; its .result() waits for the update
                                  and returns what that returns. (Python's ThreadPoolExecutor(1) is such a host.)

    Steps count from 0. Up to step after-1 each step's update is complete before the next step begins. From step `after`
    on a step's update runs while the next step's gradient is computed, with the parameters that there are: they are one
    update behind. There is one update at a time, in the order of the steps. `after` may be 0, or more than all steps.
    """
    raise NotImplementedError


# ---- a layer that is too large ---------------------------------------------------------------------------------------


def tiled_backward(
    dy: Array, x: Array, fetch: Callable[[int], Array], give: Callable[[int, Array], None], tiles: int
) -> Array:
    """The backward of y = x Wᵀ, x (n, in), W (out, in), of which one tile is here at a time: the gradient of x (n, in).

    dy (n, out)       the gradient of y; `tiles` divides `out`
    fetch(i)          tile i of W: rows i·out/tiles to (i+1)·out/tiles, (out/tiles, in)
    give(i, dw)       takes the gradient of tile i (out/tiles, in), and brings it away

    Fetch each tile once. When you fetch one, hold no more than the one before it and that one's gradient, which you
    have given away.
    """
    raise NotImplementedError
