"""The functions with which lesson 09's notebook goes on if yours are not filled in: look here after you have tried."""

import numpy as np

from minidist.mpi.comm import Comm
from minidist.ring import all_gather, reduce_scatter

Array = np.ndarray


# ---- the gaps --------------------------------------------------------------------------------------------------------


def cut_shard(w: Array, n: int, rank: int) -> Array:
    flat = w.reshape(-1)
    flat = np.append(flat, np.zeros(-flat.size % n))
    return np.split(flat, n)[rank].copy()


def gather(comm: Comm, shard: Array, rows: int, columns: int) -> Array:
    flat = all_gather(comm, shard, comm.size * shard.size)
    return flat[: rows * columns].reshape(rows, columns)


def forward_layer(comm: Comm, shard: Array, h: Array) -> Array:
    with comm.phase("all-gather forward"):
        w = gather(comm, shard, h.shape[1], h.shape[1])
    return np.tanh(h @ w)


def backward_layer(comm: Comm, shard: Array, h: Array, out: Array, dout: Array) -> tuple[Array, Array]:
    dz = dout * (1 - out**2)
    with comm.phase("all-gather backward"):
        w = gather(comm, shard, h.shape[1], h.shape[1])
    dw = np.append(h.T @ dz, np.zeros(-w.size % comm.size))
    with comm.phase("reduce-scatter gradients"):
        gradient = reduce_scatter(comm, dw)
    return gradient, dz @ w.T


# ---- the exercise's first part ---------------------------------------------------------------------------------------


def train_step(comm: Comm, shards: list[Array], x: Array, y: Array, batch: int, rate: float) -> float:
    h = [x]
    for shard in shards:
        h.append(forward_layer(comm, shard, h[-1]))
    dh = (h[-1] - y) / batch
    for i in reversed(range(len(shards))):
        gradient, dh = backward_layer(comm, shards[i], h[i], h[i + 1], dh)
        shards[i] -= rate * gradient
    return float(((h[-1] - y) ** 2).sum() / 2 / batch)
