"""What lesson 16's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- attention of some queries over some keys ------------------------------------------------------------------------


def attend(q: Array, k: Array, v: Array, hidden: Array | bool = False) -> tuple[Array, Array]:
    s = np.where(hidden, -np.inf, q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]))
    top = s.max(axis=-1, keepdims=True, initial=np.finfo(float).min)
    p = np.exp(s - top)
    total = p.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = top + np.log(total)
    return p @ v / np.maximum(total, np.finfo(float).tiny), lse[..., 0]


def attend_back(
    q: Array, k: Array, v: Array, hidden: Array | bool, dy: Array, lse: Array, dot: Array
) -> tuple[Array, Array, Array]:
    s = np.where(hidden, -np.inf, q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]))
    p = np.exp(s - lse[..., None])
    ds = p * (dy @ np.swapaxes(v, -1, -2) - dot[..., None]) / math.sqrt(q.shape[-1])
    return ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ dy


# ---- the notebook's runs ---------------------------------------------------------------------------------------------


def draw_sequence(seed: int, length: int, d: int = 8) -> Array:
    """q, k, v and dy of one head: (4, length, d)."""
    return np.random.default_rng(seed).standard_normal((4, length, d))


def find_serial(q: Array, k: Array, v: Array, dy: Array) -> list[Array]:
    """y, dq, dk and dv of causal attention in one process."""
    hidden = np.triu(np.ones((len(q), len(q)), bool), 1)
    y, lse = attend(q, k, v, hidden)
    return [y, *attend_back(q, k, v, hidden, dy, lse, (dy * y).sum(axis=-1))]


def join(parts: Sequence[Array], at: Sequence[Array]) -> Array:
    """The whole of what ranks have at their positions."""
    whole = np.empty((sum(map(len, at)), *parts[0].shape[1:]))
    for part, own in zip(parts, at, strict=True):
        whole[own] = part
    return whole


def same(one: Array, other: Array) -> bool:
    """Equal to ten digits."""
    return bool(abs(one - other).max() < 1e-10 * abs(other).max())


def count_wrong(found: Array, right: Array) -> int:
    """Positions at which results differ."""
    return int(np.sum(abs(found - right).max(axis=-1) > 1e-10))


def draw_arrays(n: int, d: int) -> dict[str, Array]:
    """What lies in a slow memory before attention of n positions."""
    q, k, v, _ = draw_sequence(0, n, d)
    made = {"Q": q, "K": k, "V": v, "S": np.empty((n, n)), "P": np.empty((n, n))}
    return {**made, "Y": np.zeros((n, d)), "L": np.full(n, -np.inf)}


def compare_parts(parts: Sequence[Sequence[Array]], at: Sequence[Array], right: Sequence[Array]) -> dict[str, bool]:
    """Whether ranks' y, dq, dk and dv are those of one process."""
    wholes = [join(of, at) for of in zip(*parts, strict=True)]
    return {name: same(*pair) for name, *pair in zip(("y", "dq", "dk", "dv"), wholes, right, strict=True)}


def count_pairs(at: Sequence[Array]) -> list[list[int]]:
    """For each rank and each step of the ring, the pairs of a query and a key that it sees."""
    from answers import owner_of

    n = len(at)
    return [[int((at[owner_of(rank, step, n)] <= own[:, None]).sum()) for step in range(n)]
            for rank, own in enumerate(at)]  # fmt: skip


def find_busy(at: Sequence[Array]) -> float:
    """The percentage of the time in which ranks work, if each step takes as long as its slowest rank."""
    pairs = count_pairs(at)
    return 100 * sum(map(sum, pairs)) / len(pairs) / sum(map(max, zip(*pairs, strict=True)))


def rotate(x: Array, at: Array) -> Array:
    """Rotary positions: the numbers i and i + d/2 of a row are a point, turned by an angle that grows with `at`."""
    half = x.shape[-1] // 2
    angle = np.outer(at, 10.0 ** (-np.arange(half)))
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=1)


def compare_turned(turned: Sequence[Mapping[tuple[str, int], Array]], sequence: Array) -> dict[tuple[str, int], float]:
    """The percentage of positions whose result is not that of one process. turned[rank][how, number of ranks]: y."""
    (q, k, v, dy), everywhere = sequence, np.arange(sequence.shape[1])
    right, wrong = find_serial(rotate(q, everywhere), rotate(k, everywhere), v, dy)[0], {}
    for how, n in turned[0]:
        found = np.concatenate([of[how, n] for of in turned[:n]])
        wrong[how, n] = 100 * count_wrong(found, right) / len(right)
    return wrong


def put_in_order(mask: Callable[..., Array], at: Sequence[Array]) -> Array:
    """Which keys each query sees, by a mask of blocks: both in the order of the sequence."""
    seen = np.block([[~mask(at, rank, owner) for owner in range(len(at))] for rank in range(len(at))])
    back = np.argsort(np.concatenate(at))
    return seen[back][:, back]


def count_schemes(comm: Comm, s: int, heads: int, kv_heads: int, depth: int) -> dict[str, tuple[int, int]]:
    """The bytes that this rank sends in the package's three schemes, forward and backward, in float32."""
    from minidist.context_parallel import SCHEMES
    from minidist.cp.group import Group
    from minidist.nn.attend import Span
    from minidist.nn.tensor import Tape

    at, found = Span(s, comm.size, comm.rank, "zigzag"), {}
    x = np.ones((1, len(at.here), (heads + 2 * kv_heads) * depth), np.float32)
    for name, scheme in SCHEMES.items():
        tape = Tape()
        comm.ledger.reset()
        y = scheme(tape.tensor(x), heads, kv_heads, at, Group(comm, np.float32))
        forward = comm.ledger.total()
        tape.backward(np.ones_like(y.data))
        found[name] = forward, comm.ledger.total() - forward
    return found
