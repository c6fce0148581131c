"""What the papers promise: their formulas as functions, with section and equation, and the figures that they print.

Ψ is the number of parameters, N the number of ranks, S a number of elements. Where a round figure of a paper leaves out
(N-1)/N, the function has it: "2Ψ" is what a ring sends at N = infinity, at N = 2 it sends 1Ψ. Padding enters through Ψ:
pass the padded count. Nothing in here looks at a run.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

# ---- ZeRO: Rajbhandari et al., SC 2020, arXiv 1910.02054 -------------------------------------------------------------


@dataclass(frozen=True)
class ModelStates:
    """Bytes on one rank."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def zero_memory(psi: float, n: int, stage: int, p: int = 2, g: int = 2, k: int = 12) -> ModelStates:
    """Bytes of model states on each of n ranks (section 5, figure 1). Stage 0 is data parallelism.

    p, g, k: bytes a parameter of parameters, gradients and optimizer state: 2, 2, 12 in the paper, with mixed-precision
    Adam.
    Stage 1 divides the optimizer state by n (P_os), stage 2 gradients too (P_os+g), stage 3 parameters too (P_os+g+p).
    """
    return ModelStates(
        parameters=p * psi / (n if stage >= 3 else 1),
        gradients=g * psi / (n if stage >= 2 else 1),
        optimizer=k * psi / (n if stage >= 1 else 1),
    )


def zero_volume(psi: float, n: int, stage: int, accumulate: int = 1, kept: float = 0) -> dict[str, float]:
    """Elements that each of n ranks sends in one step of `accumulate` micro-batches, by what they are (section 7).

    The paper's 2Ψ, 2Ψ, 2Ψ and 3Ψ, times (N-1)/N, are accumulate = 1. Stages 2 and 3 hold no full gradient, so they
    reduce after every micro-batch: (a+1)Ψ and 3aΨ. In stage 3, `kept` parameters that stay gathered from the forward to
    the backward are not gathered again: 3Ψ - ψ_kept (as FSDP does it, Zhao et al. 2023, section 3.3.1).
    """
    once = psi * (n - 1) / n
    again = (psi - kept) * (n - 1) / n
    if stage == 0:
        return {"all-reduce gradients": 2 * once}
    if stage == 1:
        return {"reduce-scatter gradients": once, "all-gather parameters": once}
    if stage == 2:
        return {"reduce-scatter gradients": accumulate * once, "all-gather parameters": once}
    return {
        "all-gather forward": accumulate * once,
        "all-gather backward": accumulate * again,
        "reduce-scatter gradients": accumulate * once,
    }


# Table 1, in GB, for mixed-precision Adam: {Ψ: {ranks: (P_os, P_os+g, P_os+g+p)}}, as printed.
ZERO_TABLE_1: dict[float, dict[int, tuple[str, str, str]]] = {
    7.5e9: {
        1: ("120", "120", "120"),
        4: ("52.5", "41.3", "30"),
        16: ("35.6", "21.6", "7.5"),
        64: ("31.4", "16.6", "1.88"),
        256: ("30.4", "15.4", "0.47"),
        1024: ("30.1", "15.1", "0.12"),
    },
    128e9: {
        1: ("2048", "2048", "2048"),
        4: ("896", "704", "512"),
        16: ("608", "368", "128"),
        64: ("536", "284", "32"),
        256: ("518", "263", "8"),
        1024: ("513", "257", "2"),
    },
    1e12: {
        1: ("16000", "16000", "16000"),
        4: ("7000", "5500", "4000"),
        16: ("4750", "2875", "1000"),
        64: ("4187", "2218", "250"),
        256: ("4046", "2054", "62.5"),
        1024: ("4011", "2013", "15.6"),
    },
}


def zero_table_cell(psi: float, n: int, stage: int) -> str:
    """One cell of Table 1 as the paper rounds it: half up to three digits, but cut off to whole GB from 128 B on."""
    gigabytes = zero_memory(psi, n, stage).total / 1e9
    if psi >= 128e9 and gigabytes > 100:
        return str(int(gigabytes))
    digits = 0 if gigabytes >= 100 else 1 if gigabytes >= 10 else 2
    rounded = int(gigabytes * 10**digits + 0.5) / 10**digits
    return f"{rounded:g}"


def short(psi: float) -> str:
    """7.5e9 as 7.5B."""
    return f"{psi / 1e12:g}T" if psi >= 1e12 else f"{psi / 1e9:g}B"


# Figure 1: model states of 7.5 B parameters on 64 ranks, GB, for stage 0 to 3, as printed.
ZERO_FIGURE_1 = ("120", "31.4", "16.6", "1.9")


# ---- collectives: Thakur, Rabenseifner & Gropp 2005; Patarasuk & Yuan 2009 -------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Steps one after another, and elements sent by each rank."""

    steps: int
    sent: list[int]


def chunk_sizes(s: int, n: int) -> list[int]:
    """The sizes of n chunks of s elements that differ by one at most, the longer ones first."""
    return [s // n + (i < s % n) for i in range(n)]


def ring_reduce_scatter(s: int, n: int) -> Cost:
    """N-1 steps; every chunk but one's own: (N-1)/N·S."""
    return Cost(n - 1, [s - c for c in chunk_sizes(s, n)])


def ring_all_gather(s: int, n: int) -> Cost:
    """N-1 steps; every chunk but the right neighbour's: (N-1)/N·S."""
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
    """The cost for n ranks of an algorithm for a power of two: of the first 2·rest ranks, even ones send S to the odd
    one beside them and sit out, and get the result back at the end."""
    rest = n - len(members)
    folded = [cost for member in members[:rest] for cost in (s, member + s)]
    return Cost(steps + 2 * (rest > 0), folded + members[rest:])


# ---- MapReduce: Dean & Ghemawat, OSDI 2004 ---------------------------------------------------------------------------


def mapreduce_bytes(keys: Sequence[str], values: Sequence[str]) -> int:
    """Bytes of intermediate pairs: |k| + |v| in UTF-8, a tab, a line feed, and one for each character escaped.

    Without a combiner, reducers fetch this for all pairs that map emits; with one, for a pair for each distinct key of
    each map task (section 4.3).
    """
    text = "".join(itertools.chain(keys, values))
    return len(text.encode()) + len(keys) + len(values) + sum(map(text.count, "\\\t\n"))


def mapreduce_decisions(m: int, r: int, again: int = 0, backups: int = 0) -> int:
    """The master's scheduling decisions: O(M + R) (section 3.5), one for each task, once more for each task that must
    start again (3.3, 4.6), and one for each backup (3.6)."""
    return m + r + again + backups
