"""Lesson 16's own functions, which the notebook uses where a gap is open: look here after you have tried."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from given import attend, attend_back

from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- the gaps --------------------------------------------------------------------------------------------------------


def merge_two(y: Array, lse: Array, other: Array, other_lse: Array) -> tuple[Array, Array]:
    both = np.logaddexp(lse, other_lse)
    return np.exp(lse - both)[..., None] * y + np.exp(other_lse - both)[..., None] * other, both


def moved_in_tiles(n: int, d: int, fast: int) -> int:
    blocks = -(-n // -(-fast // (4 * d)))
    return 2 * n * d + blocks * (3 * n * d + 2 * n)


def owner_of(rank: int, step: int, n: int) -> int:
    return (rank - step) % n


def ring_attention(comm: Comm, q: Array, k: Array, v: Array, at: Sequence[Array]) -> tuple[Array, Array]:
    n, rank = comm.size, comm.rank
    block = np.stack([k, v])
    y, lse = attend(q, k, v, at[rank] > at[rank][:, None])
    for step in range(1, n):
        coming = np.empty_like(block)
        comm.sendrecv(block, (rank + 1) % n, coming, (rank - 1) % n)
        block = coming
        y, lse = merge_two(y, lse, *attend(q, *block, at[owner_of(rank, step, n)] > at[rank][:, None]))
    return y, lse


def zigzag(length: int, n: int, rank: int) -> Array:
    chunks = np.split(np.arange(length), 2 * n)
    return np.concatenate([chunks[rank], chunks[2 * n - 1 - rank]])


def numbers_sent(s: int, h: int, g: float, n: int) -> dict[str, float]:
    ring = 2 * g * s * h * (n - 1) / n
    return {"ring": ring, "all-gather": ring, "ulysses": (2 + 2 * g) * s * h / n * (n - 1) / n}


# ---- the exercise ----------------------------------------------------------------------------------------------------


def merge(y: Array, lse: Array, other: Array, other_lse: Array) -> tuple[Array, Array]:
    return merge_two(y, lse, other, other_lse)


def positions(length: int, n: int, rank: int) -> Array:
    chunks = np.array_split(np.arange(length), 2 * n)
    return np.concatenate([chunks[rank], chunks[2 * n - 1 - rank]])


def ring_forward(comm: Comm, q: Array, k: Array, v: Array, at: Sequence[Array]) -> tuple[Array, Array]:
    mine = at[comm.rank][:, None]
    y, lse = attend(q, k, v, at[comm.rank] > mine)
    for owner, (keys, values) in around(comm, k, v, at):
        y, lse = merge(y, lse, *attend(q, keys, values, at[owner] > mine))
    return y, lse


def ring_backward(
    comm: Comm, q: Array, k: Array, v: Array, y: Array, lse: Array, dy: Array, at: Sequence[Array]
) -> tuple[Array, Array, Array]:
    n, rank = comm.size, comm.rank
    mine, known = at[rank][:, None], (dy, lse, (dy * y).sum(axis=-1))
    dq, *home = attend_back(q, k, v, at[rank] > mine, *known)
    others: Array | float = 0.0  # what other ranks have added to the gradients of the block in use
    for owner, (keys, values) in around(comm, k, v, at):
        part, dk, dv = attend_back(q, keys, values, at[owner] > mine, *known)
        dq += part
        going = np.stack([dk, dv]) + others
        others = np.empty((*going.shape[:-2], len(at[owner - 1]), going.shape[-1]))
        comm.sendrecv(going, (rank + 1) % n, others, (rank - 1) % n)
    dk, dv = np.stack(home) + others
    return dq, dk, dv


def sent(scheme: str, length: int, heads: int, kv_heads: int, depth: int, n: int) -> tuple[float, float]:
    if scheme == "ulysses":
        numbers = 2 * (heads + kv_heads) * depth * length / n * (n - 1) / n
        return numbers, numbers
    block = 2 * kv_heads * depth * length / n
    return (n - 1) * block, 2 * (n - 1) * block


def choose(length: int, heads: int, kv_heads: int, depth: int, n: int, room: float) -> str:
    best = "all-gather" if 2 * kv_heads * depth * length <= room else "ring"
    of = length, heads, kv_heads, depth, n
    return "ulysses" if kv_heads % n == 0 and sum(sent("ulysses", *of)) < sum(sent(best, *of)) else best


def around(comm: Comm, k: Array, v: Array, at: Sequence[Array]) -> Iterator[tuple[int, Array]]:
    """The blocks of the other ranks, and whose they are, as they come from the left."""
    n, rank = comm.size, comm.rank
    block = np.stack([k, v])  # (2, ..., c, d)
    for step in range(1, n):
        owner = (rank - step) % n
        coming = np.empty((*block.shape[:-2], len(at[owner]), block.shape[-1]))
        comm.sendrecv(block, (rank + 1) % n, coming, (rank - 1) % n)
        block = coming
        yield owner, block


def ring_with_mask(comm: Comm, q: Array, k: Array, v: Array, at: Sequence[Array], mask: Callable[..., Array]) -> Array:
    """y of ring attention in which mask(at, rank, owner) says what is hidden."""
    y, lse = attend(q, k, v, mask(at, comm.rank, comm.rank))
    for owner, (keys, values) in around(comm, k, v, at):
        y, lse = merge(y, lse, *attend(q, keys, values, mask(at, comm.rank, owner)))
    return y
