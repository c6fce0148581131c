"""For comparison with the ring: other all-reduce algorithms, each with what its busiest rank sends.

Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005,
doi 10.1177/1094342005051521.

`python -m minidist.ring` runs them all, and compares what each sends with its paper. Which is best depends on S and N:
the ring and Rabenseifner's algorithm send least, recursive doubling has the fewest steps.
"""

import numpy as np

from minidist import ring
from minidist.mpi.comm import Comm

Array = np.ndarray


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


def halving_doubling_all_reduce(comm: Comm, x: Array) -> Array:
    """Rabenseifner: reduce-scatter by halving, all-gather by doubling: as many bytes as the ring, in 2 lg N steps.

    First, partners that are farthest apart swap halves, and each sums one half of the array. Nearer partners then swap
    quarters, and so on down to one chunk. The all-gather goes the same way back. N is folded to a power of two first.
    """
    total = x.copy()
    place, members = _fold(comm, total)
    if place is not None:
        n = len(members)
        low, high = 0, n  # the chunks that this rank is still summing
        exchanges = []  # (partner, the part given away, the part kept), undone in reverse order
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
    """The elements of chunks first to last-1 of n."""
    return slice(ring.chunk(size, n, first).start, ring.chunk(size, n, last - 1).stop)


def _fold(comm: Comm, total: Array) -> tuple[int | None, list[int]]:
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
