"""The functions with which lesson 08's notebook goes on if yours are not filled in: look here after you have tried."""

from collections.abc import Sequence

import numpy as np
from given import Parts, Unit, forward, layer_backward, update_shard

from minidist.mpi.comm import Comm
from minidist.ring import reduce_scatter

Array = np.ndarray


# ---- the gaps --------------------------------------------------------------------------------------------------------


def reduce_unit(comm: Comm, gradient: Array) -> Array:
    bucket = np.append(gradient, np.zeros(-gradient.size % comm.size))
    with comm.phase("reduce-scatter gradients"):
        return reduce_scatter(comm, bucket)


def backward(comm: Comm, units: Sequence[Unit], h: Sequence[Array], dh: Array) -> None:
    for i in reversed(range(len(units))):
        gradient, dh = layer_backward(units[i].param, h[i], h[i + 1], dh)
        units[i].grad += reduce_unit(comm, gradient)


def accumulate(comm: Comm, units: Sequence[Unit], parts: Parts, batch: int) -> float:
    loss = 0.0
    for x, y in parts:
        h = forward(units, x)
        loss += float(((h[-1] - y) ** 2).sum() / 2 / batch)
        backward(comm, units, h, (h[-1] - y) / batch)
    return loss


def room(sizes: Sequence[int], n: int) -> int:
    padded = [-(-size // n) * n for size in sizes]
    return 2 * sum(padded) + 14 * sum(padded) // n + 2 * max(padded)


# ---- the exercise's first part ---------------------------------------------------------------------------------------


def train_step(comm: Comm, units: Sequence[Unit], parts: Parts, batch: int, rate: float) -> float:
    loss = accumulate(comm, units, parts, batch)
    for unit in units:
        update_shard(comm, unit.param, unit.master, -rate * unit.grad)
        unit.grad.fill(0)
    return loss
