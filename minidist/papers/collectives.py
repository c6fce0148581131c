"""Collectives: Thakur, Rabenseifner & Gropp 2005; Patarasuk & Yuan 2009; Sanders, Speck & Träff 2009."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cost:
    """Successive steps, and elements sent by each rank; those across hosts, if it depends on which ranks share one."""

    steps: int
    sent: list[int]
    across: list[int] = field(default_factory=list)


def chunk_sizes(s: int, n: int) -> list[int]:
    """The sizes of n chunks of s elements that differ by one at most, the longer ones first."""
    return [s // n + (i < s % n) for i in range(n)]


def ring_reduce_scatter(s: int, n: int) -> Cost:
    """N-1 steps; every chunk but one's own: (N-1)/N·S."""
    return Cost(n - 1, [s - c for c in chunk_sizes(s, n)])


def ring_all_gather(s: int, n: int) -> Cost:
    """N-1 steps; every chunk but the right neighbor's: (N-1)/N·S."""
    chunks = chunk_sizes(s, n)
    return Cost(n - 1, [s - chunks[(rank + 1) % n] for rank in range(n)])


def ring_all_reduce(s: int, n: int) -> Cost:
    """2(N-1) steps, 2(N-1)/N·S from each rank, which no algorithm can beat (Patarasuk & Yuan)."""
    scatter, gather = ring_reduce_scatter(s, n), ring_all_gather(s, n)
    return Cost(2 * (n - 1), [a + b for a, b in zip(scatter.sent, gather.sent, strict=True)])


def server_all_reduce(s: int, n: int) -> Cost:
    """2(N-1) steps at the server, which sends (N-1)·S; the others S."""
    return Cost(2 * (n - 1), [(n - 1) * s] + [s] * (n - 1))


def tree_all_reduce(s: int, n: int) -> Cost:
    """2⌈lg N⌉ steps up and down a binomial tree; S to the parent, and S to each child."""
    rounds = [1 << k for k in range((n - 1).bit_length())]
    children = [sum(rank % (2 * d) == 0 and rank + d < n for d in rounds) for rank in range(n)]
    return Cost(2 * len(rounds), [s * ((rank > 0) + children[rank]) for rank in range(n)])


def doubling_all_reduce(s: int, n: int) -> Cost:
    """Recursive doubling: ⌊lg N⌋ steps of S, and two more to fold N to a power of two and back."""
    p = _power_of_two(n)
    lg = p.bit_length() - 1
    return _folded(n, s, [s * lg] * p, lg)


def halving_doubling_all_reduce(s: int, n: int) -> Cost:
    """Rabenseifner: 2⌊lg N⌋ steps, 2(N-1)/N·S for a power of two, and two steps more to fold other N."""
    p = _power_of_two(n)
    lg, chunks = p.bit_length() - 1, chunk_sizes(s, p)
    sent = []
    for place in range(p):
        scatter = s - chunks[place]  # halving gives away all but one chunk
        aligned = (slice(place >> k << k, (place >> k << k) + (1 << k)) for k in range(lg))
        sent.append(scatter + sum(sum(chunks[block]) for block in aligned))  # doubling: 1 chunk, 2, 4, …
    return _folded(n, s, sent, 2 * lg)


SHORT = 262_144  # bytes up to which a training chapter's all-reduce takes few steps


def all_reduce_messages(s: int, n: int, itemsize: int, hosts: Sequence[int]) -> int:
    """Messages that each rank sends for a training chapter's all-reduce, by size and by the host of each rank. The
    bytes are always the ring's: with other sums it only takes s that n divides."""
    on_each = Counter(hosts).values()
    if s % n == 0 and 1 < len(on_each) < n == len(on_each) * max(on_each):
        return 2 * (n // len(on_each) - 1) + 2 * (len(on_each) - 1)
    return 2 * (n.bit_length() - 1 if s % n == 0 == n & (n - 1) and s * itemsize <= SHORT else n - 1)


# ---- trees: every rank is in one place of each, and sends a tree's part once along each of its edges -----------------


def binary_tree_all_reduce(s: int, n: int, blocks: int = 8) -> Cost:
    """Up and down an in-order tree: S along each of a rank's edges, one to three. A block is sent or received twice
    along each."""
    edges = _edges(n)
    return Cost(2 * blocks * max(edges), [s * of for of in edges])


def double_tree_all_reduce(s: int, n: int, blocks: int = 8) -> Cost:
    """Half of S along each edge of two trees, in which no rank is inside twice: 2S at most."""
    edges = _edges(n)
    other = edges[-1:] + edges[:-1] if n % 2 else edges[::-1]
    larger, smaller = chunk_sizes(s, 2)
    sent = [larger * one + smaller * two for one, two in zip(edges, other, strict=True)]
    return Cost(2 * blocks * max(a + b for a, b in zip(edges, other, strict=True)), sent)


def _edges(n: int) -> list[int]:
    """Edges of each rank in the in-order tree. The root has one child. Every other rank has a parent. Even ranks also
    have a child on the left, and one on the right if there is a rank on the right."""
    inner = [2 + (rank + 1 < n) if rank % 2 == 0 else 1 for rank in range(1, n)]
    return [int(n > 1), *inner]


# ---- ranks on hosts: g of them share one -----------------------------------------------------------------------------


def hierarchical_all_reduce(s: int, n: int, g: int) -> Cost:
    """(G-1)/G·S within a host, 2(H-1)/H·S/G across, (G-1)/G·S within."""
    h, chunks = n // g, chunk_sizes(s, g)
    across = [ring_all_reduce(chunks[rank % g], h).sent[rank // g] for rank in range(n)]
    within = [2 * s - chunks[rank % g] - chunks[(rank + 1) % g] for rank in range(n)]
    return Cost(2 * (g - 1) + 2 * (h - 1), [a + b for a, b in zip(across, within, strict=True)], across)


def hosts_first_ring(s: int, n: int, g: int) -> Cost:
    """The last rank of each host sends across: 2(N-1)/N·S."""
    ring = ring_all_reduce(s, n)
    return Cost(ring.steps, ring.sent, [sent * ((rank + 1) % g == 0 and g < n) for rank, sent in enumerate(ring.sent)])


def hosts_last_ring(s: int, n: int, g: int) -> Cost:
    """Every rank sends across: the ring's place i is rank i/H of host i mod H."""
    ring, h = ring_all_reduce(s, n), n // g
    sent = [ring.sent[rank % g * h + rank // g] for rank in range(n)]
    return Cost(ring.steps, sent, [of * (h > 1) for of in sent])


def broadcast(s: int, n: int) -> Cost:
    """Van de Geijn, root 0: the root scatters in N-1 sends, then the ring all-gather."""
    sent = ring_all_gather(s, n).sent
    return Cost(2 * (n - 1), [sent[0] + s - chunk_sizes(s, n)[0], *sent[1:]])


def all_to_all(s: int, n: int) -> Cost:
    """Pairwise exchange of rows of s/n elements: N-1 steps, all rows but one's own."""
    return Cost(n - 1, [s // n * (n - 1)] * n)


def _power_of_two(n: int) -> int:
    """The largest power of two up to n."""
    return 1 << n.bit_length() - 1


def _folded(n: int, s: int, members: list[int], steps: int) -> Cost:
    """The cost for n ranks of an algorithm for a power of two. Among the first 2·rest ranks, each even one sends S to
    the next odd one, sits out, and gets the result back at the end."""
    rest = n - len(members)
    folded = [cost for member in members[:rest] for cost in (s, member + s)]
    return Cost(steps + 2 * (rest > 0), folded + members[rest:])
