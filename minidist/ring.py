"""Collectives over send and receive: the ring, and what it is measured against.

    mpirun -n 4 python -m minidist.ring

Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009 (the ring).
Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005 (the others).

Sum an array over N ranks, so that each ends with the sum. A server that collects everything and sends it back moves
(N-1)·S bytes in and out of one rank. The ring cuts the array into N chunks and lets N partial sums travel at the same
time, one a rank, so that every rank sends 2(N-1)/N·S and no rank is busier than another. The total on the wire is the
same, 2(N-1)·S; only its distribution differs.

Every function works for each N >= 1 and each size, divisible by N or not, empty included, and leaves its input alone.
"""

import argparse
import functools
import sys

import numpy as np

from minidist.claims.collectives import Collective, compare, rows_of, sum_of
from minidist.claims.files import check_writable
from minidist.cli.options import Parser, at_least, timeout
from minidist.mpi.comm import Comm
from minidist.mpi.run import run
from minidist.mpi.stops import TIMEOUT
from minidist.papers import collectives

Array = np.ndarray


@functools.lru_cache(maxsize=4096)  # a training step cuts arrays of the same few sizes again and again
def chunk(size: int, n: int, i: int) -> slice:
    """The i-th of n consecutive chunks of `size` elements: the first size mod n are one element longer."""
    short, longer = divmod(size, n)
    start = i * short + min(i, longer)
    return slice(start, start + short + (i < longer))


def cut(x: Array, n: int) -> list[Array]:
    """All n chunks of x, as views."""
    return [x[chunk(x.size, n, i)] for i in range(n)]


# ---- the ring --------------------------------------------------------------------------------------------------------


def reduce_scatter(comm: Comm, x: Array, out: Array | None = None, op: np.ufunc = np.add) -> Array:
    """Sum x over the ranks; rank r gets chunk r of the sum. N-1 steps, S - |chunk r| elements sent.

    x (S,) is the same size everywhere. out (|chunk r|,) may be a view of x.
    With op = np.maximum it is the largest instead of the sum.
    """
    _check(x, x.size, x)
    parts = cut(x, comm.size)
    mine = parts[comm.rank]
    out = np.empty_like(mine) if out is None else out
    _check(out, mine.size, x)
    incoming, partial = np.empty((2, parts[0].size), x.dtype)  # chunk 0 is the longest
    sums = [partial[: part.size] for part in parts]  # one after another: each is sent before the next is made
    sums[comm.rank] = out
    _sum_around(comm, parts, sums, incoming, op)
    return out


def _sum_around(comm: Comm, parts: list[Array], sums: list[Array], incoming: Array | None, op: np.ufunc) -> None:
    """Chunk c sets out from rank c+1, each rank on the way adds its own part, and it ends its way round at rank c:
    x[c+1] + x[c+2] + … + x[c].

    parts[c] is this rank's own part; sums[c] is where it puts its sum with what comes from the left. That is received
    into `incoming`, or where this is None into sums[c] itself, which must then lie outside of x.
    """
    n, rank, right, left = comm.size, comm.rank, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    partial = parts[rank - 1]  # of the first chunk that it sends, just its own part
    for step in range(2, n + 1):
        own, total = parts[rank - step], sums[rank - step]  # of the chunk that comes next, from the left
        arrived = total if incoming is None else incoming[: own.size]
        comm.sendrecv(partial, right, arrived, left)
        partial = op(arrived, own, out=total)
    if n == 1:
        sums[0][...] = parts[0]


def all_gather(comm: Comm, x: Array, size: int, out: Array | None = None) -> Array:
    """Put everyone's chunk together; each rank gets all `size` elements. N-1 steps, S - |chunk r+1| elements sent.

    x is this rank's chunk of `size` elements, as `chunk` cuts them. out (size,) may be the array of which x is a view.
    """
    out = np.empty(size, x.dtype) if out is None else out
    _check(out, size, x)
    parts = cut(out, comm.size)
    _check(x, parts[comm.rank].size, x)
    parts[comm.rank][...] = x
    _circulate(comm, parts)
    return out


def _check(array: Array, size: int, like: Array) -> None:
    """Raise ValueError for an array that NumPy would stretch, cut or convert without a word."""
    if array.shape != (size,) or array.dtype != like.dtype:
        raise ValueError(f"{array.dtype} of shape {array.shape} where {like.dtype} of shape {(size,)} is needed")


def _circulate(comm: Comm, parts: list[Array]) -> None:
    """All-gather in place: each rank passes on what it received last, so that every chunk travels once around."""
    n, rank, right, left = comm.size, comm.rank, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(n - 1):
        comm.sendrecv(parts[rank - step], right, parts[rank - step - 1], left)


def all_reduce(comm: Comm, x: Array, out: Array | None = None, op: np.ufunc = np.add) -> Array:
    """Sum x over the ranks; each gets all of the sum, to the same bit. 2(N-1) steps, 2S - |chunk r| - |chunk r+1| sent.

    A reduce-scatter and an all-gather, with every partial sum where the result will be.
    out (S,) may be x itself. With op = np.maximum it is the largest instead of the sum.
    """
    out = np.empty_like(x) if out is None else out
    _check(x, x.size, x)
    _check(out, x.size, x)
    if out is not x and np.may_share_memory(x, out):
        x = x.copy()  # else sums would overwrite what has not been added yet
    parts, sums = cut(x, comm.size), cut(out, comm.size)
    _sum_around(comm, parts, sums, np.empty_like(parts[0]) if out is x else None, op)
    _circulate(comm, sums)
    return out


def broadcast(comm: Comm, x: Array, root: int = 0) -> Array:
    """Fill everyone's x (S,), in place, with the root's (van de Geijn: scatter, then ring all-gather).

    The root sends each rank its chunk, and the chunks then travel around: the root sends 2(N-1)/N·S, the others
    (N-1)/N·S, where sending the whole to each in turn would cost the root (N-1)·S.
    """
    parts = cut(x, comm.size)
    if comm.rank == root:
        for dest in range(comm.size):
            if dest != root:
                comm.send(parts[dest], dest)
    else:
        comm.recv(parts[comm.rank], root)
    _circulate(comm, parts)
    return x


def all_to_all(comm: Comm, x: Array) -> Array:
    """Row i of x (N, ...) goes to rank i; row i of the result is what rank i sent here. N-1 pairwise exchanges."""
    out = np.empty_like(x)
    out[comm.rank] = x[comm.rank]
    for distance in range(1, comm.size):
        dest, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.sendrecv(x[dest], dest, out[source], source)
    return out


# ---- for comparison: other ways to all-reduce ------------------------------------------------------------------------


def server_all_reduce(comm: Comm, x: Array, out: Array | None = None) -> Array:
    """Everyone sends to rank 0, which adds up and sends back. Rank 0 sends and receives (N-1)·S: the hot spot."""
    total = np.empty_like(x) if out is None else out
    total[...] = x
    if comm.rank > 0:
        comm.send(x, 0)
        comm.recv(total, 0)
        return total
    incoming = np.empty_like(x)
    for source in range(1, comm.size):
        comm.recv(incoming, source)
        total += incoming
    for dest in range(1, comm.size):
        comm.send(total, dest)
    return total


def tree_all_reduce(comm: Comm, x: Array) -> Array:
    """Reduce up a binomial tree to rank 0, broadcast down it: 2⌈lg N⌉ steps, but whole messages of S at each.

    In round k, ranks that are odd multiples of 2^k send to the even multiple below them and are done. On the way back
    the rounds run in the opposite order.
    """
    total, incoming = x.copy(), np.empty_like(x)
    distances = [1 << k for k in range((comm.size - 1).bit_length())]
    for distance in distances:
        if comm.rank % (2 * distance) == distance:
            comm.send(total, comm.rank - distance)
        elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.recv(incoming, comm.rank + distance)
            total += incoming
    for distance in reversed(distances):
        if comm.rank % (2 * distance) == distance:
            comm.recv(total, comm.rank - distance)
        elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.send(total, comm.rank + distance)
    return total


def doubling_all_reduce(comm: Comm, x: Array) -> Array:
    """Recursive doubling: exchange everything with the rank at distance 1, 2, 4, …: ⌊lg N⌋ steps of S, best when small.

    N that are no powers of two are folded first, see `_fold`.
    """
    total, incoming = x.copy(), np.empty_like(x)
    place, members = _fold(comm, total)
    if place is not None:
        for k in range(len(members).bit_length() - 1):
            partner = members[place ^ (1 << k)]
            comm.sendrecv(total, partner, incoming, partner)
            total += incoming
    _unfold(comm, total)
    return total


def halving_doubling_all_reduce(comm: Comm, x: Array) -> Array:
    """Rabenseifner: reduce-scatter by halving, all-gather by doubling: the ring's bytes in 2 lg N steps.

    First with the farthest rank: swap halves, so that each has summed half of the array; then a quarter with a nearer
    one; and so on down to one chunk. Then the same way back, doubling. N is folded to a power of two first.
    """
    total = x.copy()
    place, members = _fold(comm, total)
    if place is not None:
        n = len(members)
        low, high = 0, n  # the chunks that this rank is still summing
        exchanges = []  # (partner, the part given away, the part kept), to be run backwards
        distance = n // 2
        while distance:
            middle = (low + high) // 2
            give, keep = ((low, middle), (middle, high)) if place & distance else ((middle, high), (low, middle))
            giving, keeping = (total[_span(x.size, n, *part)] for part in (give, keep))
            partner = members[place ^ distance]
            incoming = np.empty_like(keeping)
            comm.sendrecv(giving, partner, incoming, partner)
            keeping += incoming
            exchanges.append((partner, giving, keeping))
            low, high = keep
            distance //= 2
        for partner, given, kept in reversed(exchanges):
            comm.sendrecv(kept, partner, given, partner)
    _unfold(comm, total)
    return total


def _span(size: int, n: int, first: int, last: int) -> slice:
    """Chunks first to last-1 of n."""
    return slice(chunk(size, n, first).start, chunk(size, n, last - 1).stop)


def _fold(comm: Comm, total: Array) -> tuple[int | None, list[int]]:
    """Make the number of taking part a power of two: of the first 2·rest ranks, the even ones hand their part to the
    odd one next to them and sit out. Returns this rank's place among the members (None: sits out) and the members."""
    rest = comm.size - (1 << comm.size.bit_length() - 1)
    members = [rank for rank in range(comm.size) if rank >= 2 * rest or rank % 2]
    if comm.rank not in members:
        comm.send(total, comm.rank + 1)
        return None, members
    if comm.rank < 2 * rest:
        incoming = np.empty_like(total)
        comm.recv(incoming, comm.rank - 1)
        total += incoming
    return members.index(comm.rank), members


def _unfold(comm: Comm, total: Array) -> None:
    """Give the result to the ranks that sat out."""
    rest = comm.size - (1 << comm.size.bit_length() - 1)
    if comm.rank < 2 * rest:
        if comm.rank % 2:
            comm.send(total, comm.rank - 1)
        else:
            comm.recv(total, comm.rank + 1)


# ---- the comparison --------------------------------------------------------------------------------------------------


COLLECTIVES = {
    "all-reduce ring": Collective(all_reduce, sum_of, collectives.ring_all_reduce, "2(N-1)/N·S"),
    "all-reduce server": Collective(server_all_reduce, sum_of, collectives.server_all_reduce, "(N-1)·S"),
    "all-reduce tree": Collective(tree_all_reduce, sum_of, collectives.tree_all_reduce, "⌈lg N⌉·S"),
    "all-reduce doubling": Collective(doubling_all_reduce, sum_of, collectives.doubling_all_reduce, "lg p·S"),
    "all-reduce halving": Collective(
        halving_doubling_all_reduce, sum_of, collectives.halving_doubling_all_reduce, "2(p-1)/p·S"
    ),
    "reduce-scatter ring": Collective(
        reduce_scatter,
        lambda inputs, rank: sum_of(inputs, rank)[chunk(inputs[0].size, len(inputs), rank)],
        collectives.ring_reduce_scatter,
        "(N-1)/N·S",
    ),
    "all-gather ring": Collective(
        lambda comm, x: all_gather(comm, x[chunk(x.size, comm.size, comm.rank)], x.size),
        lambda inputs, rank: np.concatenate([x[chunk(x.size, len(inputs), i)] for i, x in enumerate(inputs)]),
        collectives.ring_all_gather,
        "(N-1)/N·S",
    ),
    "broadcast": Collective(
        lambda comm, x: broadcast(comm, x.copy()), lambda inputs, rank: inputs[0], collectives.broadcast, "2(N-1)/N·S"
    ),
    "all-to-all": Collective(
        lambda comm, x: all_to_all(comm, rows_of(comm.size, x)),
        lambda inputs, rank: np.stack([rows_of(len(inputs), x)[rank] for x in inputs]),
        collectives.all_to_all,
        "(N-1)/N·S",
    ),
}


def parser() -> Parser:
    made = Parser("ring", __doc__ or "")
    made.add_argument("--size", type=at_least(0, at_most=10**8), default=20_003, help="S: float32 elements")
    made.add_argument("--timeout", type=timeout, default=TIMEOUT, metavar="S", help="if a rank is silent; 0: never")
    made.add_argument("--json", metavar="FILE", help="write the report for machines; - is standard output")
    return made


def prepare(arguments: list[str]) -> argparse.Namespace:
    options = parser().parse_args(arguments)
    check_writable("--json", options.json if options.json != "-" else None)
    return options


if __name__ == "__main__":
    run(prepare=lambda comm: prepare(sys.argv[1:]), main=lambda comm, options: compare(comm, options, COLLECTIVES))
