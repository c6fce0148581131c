"""Collectives: Thakur, Rabenseifner & Gropp 2005; Patarasuk & Yuan 2009."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Successive steps, and elements sent by each rank."""

    steps: int
    sent: list[int]


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
    return _folded(
        n, s, [s * (_power_of_two(n).bit_length() - 1)] * _power_of_two(n), _power_of_two(n).bit_length() - 1
    )


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
