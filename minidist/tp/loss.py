"""The loss of logits that are cut by entries of the vocabulary (Shoeybi et al. 2019, section 3), and what it avoids."""

import numpy as np

from minidist import collectives, ring
from minidist.nn.tensor import Array, Tensor, record
from minidist.tp.group import TensorGroup


def vocabulary_parallel_cross_entropy(logits: Tensor, targets: Array, vocabulary: int, group: TensorGroup) -> Tensor:
    """ops.cross_entropy for logits (B, T, V'/t); over all ranks, only the first `vocabulary` are not padding.

    Instead of the logits, b·s·v numbers, three times b·s are sent: for each position the largest logit, the target's
    logit, and the sum of exponentials. (The paper says b·s; its code sends these three.)
    """
    columns = logits.shape[-1]
    first = columns * group.comm.rank
    prob = logits.data.reshape(-1, columns).copy()  # (n, V'/t)
    prob[:, max(0, vocabulary - first) :] = -np.inf  # padding is never predicted

    def own(targets: Array) -> tuple[Array, Array]:
        """The positions whose target is one of this rank's columns, and which one."""
        column = targets.reshape(-1) - first
        here = (column >= 0) & (column < columns)
        return np.flatnonzero(here), column[here]

    def all_reduce(x: Array, op: np.ufunc) -> Array:
        with group.comm.phase("loss: all-reduce"):
            return collectives.all_reduce(group.comm, x, op=op)  # in full precision, like the probabilities

    prob -= all_reduce(prob.max(axis=-1), np.maximum)[:, None]
    target = np.zeros(len(prob), prob.dtype)
    target[own(targets)[0]] = prob[own(targets)]
    target = all_reduce(target, np.add)
    np.exp(prob, out=prob)
    total = all_reduce(prob.sum(axis=-1), np.add)
    prob /= total[:, None]
    loss = (np.log(total) - target).mean(dtype=prob.dtype)

    def backward(dloss: Array, prob: Array, targets: Array) -> Array:
        dlogits = prob * (dloss / len(prob))
        dlogits[own(targets)] -= dloss / len(prob)
        return dlogits.reshape(*targets.shape, -1)

    return record(np.asarray(loss), (logits,), backward, keep_exact=(prob, targets))


def gather_logits(logits: Tensor, vocabulary: int, group: TensorGroup) -> Tensor:
    """What the loss above avoids: (B, T, V'/t) -> (B, T, V) on every rank, which keeps its part of the gradient."""
    rank, t, columns = group.comm.rank, group.comm.size, logits.shape[-1]
    with group.comm.phase("loss: all-gather"):
        part = logits.data.astype(group.wire, copy=False).reshape(-1)
        whole = ring.all_gather(group.comm, part, part.size * t).reshape(t, -1, columns)
    y = whole.transpose(1, 0, 2).reshape(*logits.shape[:-1], -1)[..., :vocabulary].astype(logits.data.dtype)

    def backward(dy: Array) -> Array:
        mine = dy[..., rank * columns : (rank + 1) * columns]
        return np.pad(mine, [(0, 0), (0, 0), (0, columns - mine.shape[-1])])

    return record(y, (logits,), backward)
