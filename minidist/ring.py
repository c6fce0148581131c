"""Collectives over send and receive, around a ring.

    mpirun -n 4 python -m minidist.ring

Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009,
doi 10.1016/j.jpdc.2008.09.002.

An all-reduce sums an array over N ranks and leaves the sum on each of them. If a server collects all arrays and sends
the sum back, (N-1)·S bytes move into and out of one rank. The ring cuts the array into N chunks, and N partial sums
travel at the same time, one per rank: every rank sends 2(N-1)/N·S, and no rank is busier than another. The total on the
wire is the same, 2(N-1)·S; only its distribution differs.

Every function works for any N >= 1 and any size, divisible by N or not, zero included, and leaves its input unchanged.

The other all-reduce algorithms with which it is compared: `minidist/collectives.py`.
"""

import functools
from collections.abc import Sequence

import numpy as np

from minidist import contents, former_names
from minidist.mpi.comm import Comm, Request
from minidist.nn.tensor import begins

Array = np.ndarray


@functools.lru_cache(maxsize=4096)  # a training step cuts arrays of the same few sizes again and again
def chunk(size: int, n: int, i: int) -> slice:
    """The i-th of n consecutive chunks of `size` elements: the first size mod n chunks are one element longer."""
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))


def cut(x: Array, n: int) -> list[Array]:
    """All n chunks of x, as views."""
    return [x[chunk(x.size, n, i)] for i in range(n)]


# ---- the ring --------------------------------------------------------------------------------------------------------


def reduce_scatter(comm: Comm, x: Array, out: Array | None = None, op: np.ufunc = np.add) -> Array:
    """Sum x over the ranks; rank r gets chunk r of the sum. N-1 steps, S - |chunk r| elements sent.

    x (S,) has the same size on every rank. out (|chunk r|,) may be a view of x.
    With op = np.maximum the result is the maximum instead of the sum.
    """
    begins("reduce-scatter", comm)
    _check(x, x.size, x)
    parts = cut(x, comm.size)
    mine = parts[comm.rank]
    out = np.empty_like(mine) if out is None else out
    _check(out, mine.size, x)
    incoming, partial = np.empty((2, parts[0].size), x.dtype)  # chunk 0 is the longest
    sums = [partial[: part.size] for part in parts]  # all in one buffer: each is sent before the next is computed
    sums[comm.rank] = out
    sum_around(comm, parts, sums, incoming, op)
    return out


def sum_around(comm: Comm, parts: list[Array], sums: list[Array], incoming: Array | None, op: np.ufunc) -> None:
    """Sum N chunks of any sizes. Chunk c starts at rank c+1, every rank on its way around adds its own part, and the
    sum ends at rank c: x[c+1] + x[c+2] + … + x[c].

    parts[c] is this rank's own part of chunk c. It adds the partial sum from the left to it, and writes the result to
    sums[c]. The partial sum is received into `incoming`, or, if that is None, into sums[c]: then it must not overlap x.
    """
    n, rank, right, left = comm.size, comm.rank, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    partial = parts[rank - 1]  # the first message holds just this rank's own part
    for step in range(2, n + 1):
        own, total = parts[rank - step], sums[rank - step]  # of the chunk that arrives next, from the left
        arrived = total if incoming is None else incoming[: own.size]
        comm.sendrecv(partial, right, arrived, left)
        partial = op(arrived, own, out=total)
    if n == 1:
        sums[0][...] = parts[0]


def all_gather(comm: Comm, x: Array, size: int, out: Array | None = None) -> Array:
    """Put the chunks of all ranks together; each gets all `size` elements. N-1 steps, S - |chunk r+1| elements sent.

    x is this rank's chunk of the `size` elements, as cut by `chunk`. out (size,) may be the array that x is a view of.
    """
    begins("all-gather", comm)
    out = np.empty(size, x.dtype) if out is None else out
    _check(out, size, x)
    parts = cut(out, comm.size)
    _check(x, parts[comm.rank].size, x)
    parts[comm.rank][...] = x
    circulate(comm, parts)
    return out


def _check(array: Array, size: int, like: Array) -> None:
    """Raise ValueError for an array that NumPy would silently stretch, cut or convert."""
    if array.shape != (size,) or array.dtype != like.dtype:
        raise ValueError(f"{array.dtype} of shape {array.shape} where {like.dtype} of shape {(size,)} is needed")


def circulate(comm: Comm, parts: list[Array]) -> None:
    """All-gather chunks of any sizes, in place: each rank passes on the chunk that it received last, so every chunk
    travels around once."""
    n, rank, right, left = comm.size, comm.rank, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(n - 1):
        comm.sendrecv(parts[rank - step], right, parts[rank - step - 1], left)


def all_reduce(comm: Comm, x: Array, out: Array | None = None, op: np.ufunc = np.add) -> Array:
    """Sum x over the ranks; each gets the same sum, bit for bit. 2(N-1) steps, 2S - |chunk r| - |chunk r+1| sent.

    A reduce-scatter, then an all-gather. Partial sums are written where the result will be.
    out (S,) may be x itself. With op = np.maximum the result is the maximum instead of the sum.
    """
    begins("all-reduce", comm)
    out = np.empty_like(x) if out is None else out
    _check(x, x.size, x)
    _check(out, x.size, x)
    if out is not x and np.may_share_memory(x, out):
        x = x.copy()  # otherwise sums would overwrite parts that are still to be added
    parts, sums = cut(x, comm.size), cut(out, comm.size)
    sum_around(comm, parts, sums, np.empty_like(parts[0]) if out is x else None, op)
    circulate(comm, sums)
    return out


def broadcast(comm: Comm, x: Array, root: int = 0) -> Array:
    """Fill x (S,) on every rank, in place, with the root's x (van de Geijn: scatter, then ring all-gather).

    The root sends each rank its chunk; then the chunks travel around the ring. The root sends 2(N-1)/N·S, the others
    (N-1)/N·S. If the root sent all of x to each rank in turn, it would send (N-1)·S.
    """
    parts = cut(x, comm.size)
    if comm.rank == root:
        for dest in range(comm.size):
            if dest != root:
                comm.send(parts[dest], dest)
    else:
        comm.recv(parts[comm.rank], root)
    circulate(comm, parts)
    return x


def all_to_all(comm: Comm, x: Array) -> Array:
    """Send row i of x (N, ...) to rank i; row i of the result came from rank i. N-1 pairwise exchanges."""
    out = np.empty_like(x)
    all_to_all_v(comm, list(x), list(out))
    return out


def all_to_all_v(comm: Comm, parts: Sequence[Array], outs: Sequence[Array]) -> None:
    """An all-to-all of any sizes: parts[i] goes to rank i, and what rank i sends arrives in outs[i]."""
    begins("all-to-all", comm)
    outs[comm.rank][...] = parts[comm.rank]
    for distance in range(1, comm.size):
        dest, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.sendrecv(parts[dest], dest, outs[source], source)


__getattr__ = former_names(__name__)


# ---- collectives under way -------------------------------------------------------------------------------------------


def start_all_gather(comm: Comm, x: Array, out: Array) -> list[Request]:
    """Start to gather the shards x (S/N,) of all ranks in out (S,). Each shard goes straight to every rank: the same
    bytes as on the ring, where each message has to wait for the one before."""
    parts = cut(out, comm.size)
    parts[comm.rank][...] = x
    return [
        *(comm.irecv(parts[peer], peer) for peer in other_ranks(comm)),
        *(comm.isend(x, peer) for peer in other_ranks(comm)),
    ]


def start_reduce_scatter(comm: Comm, x: Array, arriving: Array) -> list[Request]:
    """Start to send each rank its shard of x (S,), and to receive the others' parts of this rank's shard, in arriving
    (N-1, S/N)."""
    parts = cut(x, comm.size)
    receives = [comm.irecv(shard, peer) for shard, peer in zip(arriving, other_ranks(comm), strict=True)]
    return [*receives, *(comm.isend(parts[peer], peer) for peer in other_ranks(comm))]


def other_ranks(comm: Comm) -> list[int]:
    """The other ranks, from the next one on: the order in which the ring adds up."""
    return [(comm.rank + distance) % comm.size for distance in range(1, comm.size)]


if __name__ == "__main__":
    contents.run("ring")  # runs them all and compares what each sends with its paper: programs/ring.py
