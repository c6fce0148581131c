"""Exercise 16: attention over a sequence that is sharded over N ranks.

Fill in the six functions; `pytest lessons/16_long_sequences` says how many points they earn. Rank r has the queries,
keys and values of some positions of the sequence: at[r] (c,), rising integers. All ranks know `at`. A query sees the
keys up to its own position. Arrays have the shape (..., c, d): first any number of heads, then c positions, then d
numbers for each. Do not change the arguments.

Send and receive with comm.send, comm.recv, comm.sendrecv(array, dest, out, source), comm.isend and comm.irecv. The ring
functions must work for every N >= 1 and for parts of any sizes. Every rank has a position at least.
"""

import math
from collections.abc import Sequence

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- given: attention of some queries over some keys -----------------------------------------------------------------


def attend(q: Array, k: Array, v: Array, hidden: Array | bool = False) -> tuple[Array, Array]:
    """(y, lse): softmax(q kᵀ/√d) v, and the logarithm of each query's sum of exponentials.

    q, y (..., c, d); k, v (..., keys, d); lse (..., c). hidden (c, keys) is True where the query must not see the key.
    A query that sees none of these keys gets zeros, and -inf.
    """
    s = np.where(hidden, -np.inf, q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]))  # (..., c, keys)
    top = s.max(axis=-1, keepdims=True, initial=np.finfo(float).min)
    p = np.exp(s - top)
    total = p.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):  # the logarithm of 0
        lse = top + np.log(total)
    return p @ v / np.maximum(total, np.finfo(float).tiny), lse[..., 0]


def attend_back(
    q: Array, k: Array, v: Array, hidden: Array | bool, dy: Array, lse: Array, dot: Array
) -> tuple[Array, Array, Array]:
    """(dq, dk, dv): what these keys contribute to the gradient of q, and the gradients of k and v from these queries.

    dy (..., c, d); lse and dot (..., c) are of *all* keys that the queries see, in whichever block these are: dot is
    the sum of dy * y over d.
    """
    s = np.where(hidden, -np.inf, q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]))
    p = np.exp(s - lse[..., None])
    ds = p * (dy @ np.swapaxes(v, -1, -2) - dot[..., None]) / math.sqrt(q.shape[-1])
    return ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ dy


# ---- first part: two results become one ------------------------------------------------------------------------------


def merge(y: Array, lse: Array, other: Array, other_lse: Array) -> tuple[Array, Array]:
    """(y, lse) over the keys of both: of the same queries over some keys, and over other ones.

    y, other (..., c, d), lse, other_lse (..., c)    as `attend` returns them

    A query may have seen no key in one of the two: there it has zeros and -inf. Never in both. Scores may be as large
    as they like: np.exp(1000) is inf.
    """
    raise NotImplementedError


# ---- second part: a cut that balances --------------------------------------------------------------------------------


def positions(length: int, n: int, rank: int) -> Array:
    """This rank's positions of 0 ... length-1: (c,), rising integers.

    Every position is on one of the n ranks. No rank has more than one position more than another. If 2n divides the
    length, the cut balances: in each step of the ring, all ranks compute the same number of pairs. (A pair is a query
    and a key that it sees. In step s, rank r has the keys of rank r - s, modulo n.)
    """
    raise NotImplementedError


# ---- third part: around the ring -------------------------------------------------------------------------------------


def ring_forward(comm: Comm, q: Array, k: Array, v: Array, at: Sequence[Array]) -> tuple[Array, Array]:
    """(y, lse) of this rank's queries over the keys of all ranks. q, k, v (..., c, d) are those of at[comm.rank].

    Begin with this rank's own block of keys and values. Then there are N-1 steps. In each, send a block to the right
    neighbor, rank + 1, and receive one from the left neighbor, rank - 1 (both modulo N): first the own block, then
    always the one that came last. A block is one message or two, float64. Merge what each block adds.
    """
    raise NotImplementedError


def ring_backward(
    comm: Comm, q: Array, k: Array, v: Array, y: Array, lse: Array, dy: Array, at: Sequence[Array]
) -> tuple[Array, Array, Array]:
    """(dq, dk, dv), the gradients of this rank's q, k and v (..., c, d).

    y, lse        as ring_forward returned them
    dy (..., c, d)    the gradient of the loss with respect to y

    The loss depends on a key through queries of all ranks, so dk and dv are sums over the ranks. Blocks of keys and
    values travel as in the forward, and the gradients of a block follow it: each rank on the way adds its own part,
    and sends the sum to its right neighbor. What a rank adds to its own keys' gradients stays at home. So it sends N-1
    blocks of keys and values, and N-1 of gradients.
    """
    raise NotImplementedError


# ---- fourth part: which scheme? --------------------------------------------------------------------------------------


def sent(scheme: str, length: int, heads: int, kv_heads: int, depth: int, n: int) -> tuple[float, float]:
    """(forward, backward): the numbers that a rank sends for attention, for one layer and one sequence.

    Each of n ranks has length/n positions. At each position there are `heads` queries, `kv_heads` keys and as many
    values, of `depth` numbers each.

    ring          as in the third part
    all-gather    forward, a rank gathers all keys and values, around a ring. Backward, it gathers them again, and the
                  gradients of all keys and values are reduce-scattered
    ulysses       a rank gives away an n-th of its heads to each of the others: their queries, keys and values, at its
                  own positions. It gets all positions of its own share of the heads, and computes. Then it sends the
                  results back to where their positions are: a row of depth numbers for each query. The backward sends
                  the gradients of all that, in the opposite direction
    """
    raise NotImplementedError


def choose(length: int, heads: int, kv_heads: int, depth: int, n: int, room: float) -> str:
    """The scheme that sends least, forward and backward together, among those that are possible. n > 1.

    ring          is always possible
    all-gather    needs room for the keys and values of the whole sequence, and for nothing else; a rank has room for
                  `room` numbers. It sends as much as the ring. Prefer it to the ring, because any mask is easy
    ulysses       gives each rank whole key/value heads, and all ranks the same number of them
    """
    raise NotImplementedError
