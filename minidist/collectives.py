"""Other all-reduce algorithms than the ring, each with what its busiest rank sends; and the choice among them.

Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005,
doi 10.1177/1094342005051521. Sanders, Speck & Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 2009, doi 10.1016/j.parco.2009.09.001.

`python -m minidist.ring` runs them all, and compares what each sends with its paper. Which is best depends on S and N,
and on where the ranks are: the ring and Rabenseifner's algorithm send least, recursive doubling has the fewest steps,
and the hierarchical one sends least across hosts. Training chapters call `all_reduce`, which chooses.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from minidist import ring
from minidist.mpi.comm import Comm
from minidist.nn.tensor import begins

Array = np.ndarray
SHORT = 1 << 18  # bytes up to which few steps matter more than the ring's simple ones: `minidist.ring --busbw` measures

# ---- the choice ------------------------------------------------------------------------------------------------------


def all_reduce(comm: Comm, x: Array, out: Array | None = None, op: np.ufunc = np.add, short: int = SHORT) -> Array:
    """Sum x over the ranks by the algorithm for its size and place; each rank gets the same bits. out may be x itself.

    If N divides S, each of the three sends 2(N-1)/N·S from every rank: the least, and what the papers promise. Where
    they differ is in steps, in bytes across hosts, and in the order of sums. short=0: on one host always the ring's.
    """
    n, even = comm.size, x.size % comm.size == 0
    halves = even and x.nbytes <= short and n & (n - 1) == 0 and n > 2  # two ranks send the same in both
    way = hierarchical_all_reduce if even and comm.evenly_spread else halving_doubling_all_reduce if halves else None
    if way:
        begins("all-reduce", comm)
    return (way or ring.all_reduce)(comm, x, out, op)


# ---- of N ranks wherever they are ------------------------------------------------------------------------------------


def server_all_reduce(comm: Comm, x: Array, out: Array | None = None) -> Array:
    """All ranks send to rank 0, which sends the sum back. Rank 0 sends and receives (N-1)·S: it is the hot spot."""
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
    """Reduce up a binomial tree to rank 0, then broadcast down it: 2⌈lg N⌉ steps, but each sends a whole S.

    In round k, ranks that are odd multiples of 2^k send to the even multiple below them and are done. On the way back
    the rounds run in reverse.
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
    """Recursive doubling: swap whole sums with the rank at distance 1, 2, 4, …: ⌊lg N⌋ steps of S, best for small S.

    If N is not a power of two, it is folded to one first: see `_fold`.
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


def halving_doubling_all_reduce(comm: Comm, x: Array, out: Array | None = None, op: np.ufunc = np.add) -> Array:
    """Rabenseifner: reduce-scatter by halving, all-gather by doubling: as many bytes as the ring, in 2 lg N steps.

    First, partners that are farthest apart swap halves, and each sums one half of the array. Nearer partners then swap
    quarters, and so on down to one chunk. The all-gather goes the same way back. N is folded to a power of two first.
    out may be x itself.
    """
    total = np.empty_like(x) if out is None else out
    if total is not x:
        total[...] = x
    place, members = _fold(comm, total, op)
    if place is not None:
        exchanges = [(members[at], total[give], total[keep]) for at, give, keep in _halves(x.size, len(members), place)]
        for partner, giving, keeping in exchanges:
            arrived = np.empty_like(keeping)
            comm.sendrecv(giving, partner, arrived, partner)
            op(keeping, arrived, out=keeping)
        for partner, given, kept in reversed(exchanges):
            comm.sendrecv(kept, partner, given, partner)
    _unfold(comm, total)
    return total


@functools.lru_cache(maxsize=4096)
def _halves(size: int, n: int, place: int) -> list[tuple[int, slice, slice]]:
    """Of n members, a power of two, each partner of one: its place, the part given to it, and the part kept."""
    low, high = 0, n  # the chunks that this member is still summing
    exchanges = []
    distance = n // 2
    while distance:
        middle = (low + high) // 2
        give, keep = ((low, middle), (middle, high)) if place & distance else ((middle, high), (low, middle))
        exchanges.append((place ^ distance, _span(size, n, *give), _span(size, n, *keep)))
        low, high = keep
        distance //= 2
    return exchanges


def _span(size: int, n: int, first: int, last: int) -> slice:
    """The elements of chunks first to last-1 of n."""
    return slice(ring.chunk(size, n, first).start, ring.chunk(size, n, last - 1).stop)


def _fold(comm: Comm, total: Array, op: np.ufunc = np.add) -> tuple[int | None, list[int]]:
    """Reduce the number of members to a power of two: of the first 2·rest ranks, each even one sends its part to the
    odd one next to it and sits out. Returns this rank's place among the members (None: sits out) and the members."""
    rest = comm.size - (1 << comm.size.bit_length() - 1)
    members = [rank for rank in range(comm.size) if rank >= 2 * rest or rank % 2]
    if comm.rank not in members:
        comm.send(total, comm.rank + 1)
        return None, members
    if comm.rank < 2 * rest:
        incoming = np.empty_like(total)
        comm.recv(incoming, comm.rank - 1)
        op(total, incoming, out=total)
    return members.index(comm.rank), members


def _unfold(comm: Comm, total: Array) -> None:
    """Give the result to the ranks that sat out."""
    rest = comm.size - (1 << comm.size.bit_length() - 1)
    if comm.rank < 2 * rest:
        if comm.rank % 2:
            comm.send(total, comm.rank - 1)
        else:
            comm.recv(total, comm.rank + 1)


# ---- binary trees, as NCCL builds them -------------------------------------------------------------------------------

BLOCKS = 8  # an array's: a rank passes one on while the next is on its way


class Place(NamedTuple):
    """A rank's place in a tree."""

    parent: int | None
    children: list[int]


def binary_tree(rank: int, n: int) -> Place:
    """The ranks in order: odd ones are leaves, their parents are odd multiples of 2, and so on; rank 0 is the root.

    So every rank has at most two children, and ranks that are close to each other are so in the tree.
    """
    low = rank & -rank or 1 << (n - 1).bit_length()  # the power of two that says how high this rank is
    right = low // 2
    while right and rank + right >= n:  # the last ranks' subtree is smaller
        right //= 2
    children = [rank - low // 2] * (rank > 0 and low > 1) + [rank + right] * (right > 0)
    above = (rank - low) | (low << 1)
    return Place(None if rank == 0 else above if above < n else rank - low, children)


def renumbered_tree(rank: int, n: int) -> Place:
    """The same tree with the ranks in another order, so that its inner ranks are leaves of the first: mirrored, or, as
    an odd N's mirror would have the same leaves, moved on by one."""

    def swap(of: int, by: int) -> int:
        return (of + by) % n if n % 2 else n - 1 - of

    parent, children = binary_tree(swap(rank, -1), n)
    return Place(None if parent is None else swap(parent, 1), [swap(child, 1) for child in children])


def binary_tree_all_reduce(comm: Comm, x: Array, blocks: int = BLOCKS) -> Array:
    """Reduce up a binary tree, then broadcast down it, block by block, so that all levels are busy at the same time. An
    inner rank sends 3S: to its parent, and to two children. A leaf sends S."""
    return _over_trees(comm, x, [binary_tree(comm.rank, comm.size)], blocks)


def double_tree_all_reduce(comm: Comm, x: Array, blocks: int = BLOCKS) -> Array:
    """Each half of the array over its own tree. A rank is a leaf of at least one, so it sends 2S at most: in each half
    to one parent, in one half to two children."""
    places = [tree(comm.rank, comm.size) for tree in (binary_tree, renumbered_tree)]
    return _over_trees(comm, x, places, blocks)


def _over_trees(comm: Comm, x: Array, places: Sequence[Place], blocks: int) -> Array:
    """Every rank goes through blocks and trees in the same order, so no two ranks ever wait for each other."""
    total = x.copy()
    incoming = np.empty_like(x[: -(-x.size // blocks)])
    cut = [ring.cut(part, blocks) for part in ring.cut(total, len(places))]
    parts = [pair for each in zip(*cut, strict=True) for pair in zip(each, places, strict=True)]
    for part, (parent, children) in parts:
        for child in children:
            comm.recv(incoming[: part.size], child)
            part += incoming[: part.size]
        if parent is not None:
            comm.send(part, parent)
    for part, (parent, children) in parts:
        if parent is not None:
            comm.recv(part, parent)
        for child in children:
            comm.send(part, child)
    return total


# ---- of ranks on hosts: links within a host are fast, those across are slow ------------------------------------------


class Among(Comm):
    """Some ranks of a communicator, in this order, as one: without a split, in which all would have to take part."""

    def __init__(self, comm: Comm, ranks: Sequence[int]) -> None:
        self.comm, self.ranks, self.ledger = comm, ranks, comm.ledger
        self.rank, self.size = ranks.index(comm.rank), len(ranks)

    def sendrecv(self, array: Array, dest: int, out: Array, source: int) -> None:
        self.comm.sendrecv(array, self.ranks[dest], out, self.ranks[source])


def hierarchical_all_reduce(comm: Comm, x: Array, out: Array | None = None, op: np.ufunc = np.add) -> Array:
    """Reduce-scatter within each of H hosts, all-reduce across hosts, all-gather within: each of a host's G ranks has
    its chunk for the way across. A rank sends (G-1)/G·S, then 2(H-1)/H·S/G across, then (G-1)/G·S.

    All hosts have the same number of ranks. out may be x itself.
    """
    hosts = comm.hosts
    host = next(host for host in hosts if comm.rank in host)
    place = host.index(comm.rank)
    within, across = Among(comm, host), Among(comm, [other[place] for other in hosts])
    out = np.empty_like(x) if out is None else out
    own = out[ring.chunk(x.size, within.size, within.rank)]
    ring.reduce_scatter(within, x, own, op)
    ring.all_reduce(across, own, own, op)
    return ring.all_gather(within, own, x.size, out)


def hosts_first_ring(comm: Comm, x: Array) -> Array:
    """The ring through all ranks of a host before the next: one link of each host's ranks crosses."""
    return ring.all_reduce(Among(comm, [rank for host in comm.hosts for rank in host]), x)


def hosts_last_ring(comm: Comm, x: Array) -> Array:
    """The ring from host to host: every link crosses, so a host sends G times as much as with `hosts_first_ring`."""
    return ring.all_reduce(Among(comm, [rank for ranks in zip(*comm.hosts, strict=True) for rank in ranks]), x)
