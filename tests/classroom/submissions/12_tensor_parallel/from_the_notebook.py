"""The notebook's gaps, as they are, under the names that the exercise asks for."""
# loses: column_part, column_part_sections, column_backward, column_backward_own, row_backward, row_backward_bias, loss_forward, loss_large
# says: the part is a view of w
# says: return the loss and prob
# says: matmul

from collections.abc import Sequence

import numpy as np

from minidist import ring
from minidist.mpi.comm import Comm

Array = np.ndarray


def all_reduce(comm: Comm, x: Array, op: np.ufunc = np.add) -> Array:
    total = ring.all_reduce(comm, np.ascontiguousarray(x).reshape(-1), op=op)
    return total.reshape(x.shape)


def column_part(w, sections, t, rank):
    size = w.shape[1] // t
    mine = slice(rank * size, (rank + 1) * size)
    return w[:, mine]


def column_forward(comm: Comm, x: Array, w: Array, bias: Array) -> Array:
    y = x @ w
    return y + bias


def column_backward(comm, x, w, dy):
    dx = dy @ w.T
    dx = ring.all_reduce(comm, dx.reshape(-1)).reshape(dx.shape)
    return dx, x.T @ dy, dy.sum(axis=0)


def row_forward(comm, x, w, bias):
    part = x @ w
    return ring.all_reduce(comm, part.reshape(-1)).reshape(part.shape) + bias


def row_backward(comm, x, w, dy):
    return dy @ w.T, x.T @ dy, dy.sum(axis=0)


def dropout_mask(key: Sequence[int], shape: tuple[int, ...], p: float, part: tuple[int, int] = (0, 1)) -> Array:
    piece, pieces = part
    random = np.random.default_rng([len(key), *key])
    whole = random.random((pieces * shape[0], *shape[1:]))
    mine = whole[piece * shape[0] : (piece + 1) * shape[0]]
    return mine >= p


def loss_forward(comm, logits, targets):
    n, columns = logits.shape
    largest = ring.all_reduce(comm, logits.max(axis=1), op=np.maximum)
    total = ring.all_reduce(comm, np.exp(logits - largest[:, None]).sum(axis=1))
    own = targets - comm.rank * columns
    here = (own >= 0) & (own < columns)
    of_target = np.zeros(n)
    of_target[here] = logits[here, own[here]]
    of_target = ring.all_reduce(comm, of_target)
    return float(np.mean(np.log(total) + largest - of_target))


def loss_backward(comm: Comm, prob: Array, targets: Array) -> Array:
    dlogits = prob - hot(comm, prob, targets)
    return dlogits / len(targets)


def hot(comm: Comm, logits: Array, targets: Array) -> Array:
    columns = logits.shape[1]
    mine = comm.rank * columns + np.arange(columns)
    return targets[:, None] == mine


def scatter_sum(comm: Comm, y: Array) -> Array:
    turned = np.swapaxes(y, 0, 1).copy()
    shard = ring.reduce_scatter(comm, turned.reshape(-1))
    shard = shard.reshape(-1, y.shape[0], y.shape[2])
    return np.swapaxes(shard, 0, 1).copy()


def gather_whole(comm: Comm, x: Array) -> Array:
    turned = np.swapaxes(x, 0, 1).copy()
    whole = ring.all_gather(comm, turned.reshape(-1), x.size * comm.size)
    whole = whole.reshape(-1, x.shape[0], x.shape[2])
    return np.swapaxes(whole, 0, 1).copy()
