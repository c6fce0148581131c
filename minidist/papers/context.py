"""Context parallelism: Liu, Zaharia, Abbeel 2023 (ring); Brandon et al. 2023 (stripes); Jacobs et al. 2023 (Ulysses);
Grattafiori et al. 2024, section 3.3.2 (all-gather, zigzag). What ranks send, compute, and hold.

N ranks divide s positions of b sequences; c = s/N where N divides s. h: width, a: query heads, g·a: key/value heads.
"""

from bisect import bisect
from collections.abc import Sequence
from functools import cache

from minidist.papers.collectives import chunk_sizes
from minidist.papers.figure import Figure

SCHEMES = ("ring", "all-gather", "ulysses")  # how queries meet the keys and values of other ranks
POSITIONS = ("zigzag", "striped", "contiguous")  # which ones a rank has

# ---- who has which positions, and how many pairs of query and key that makes -----------------------------------------


def positions(s: int, n: int, how: str) -> list[list[int]]:
    """Each rank's positions: contiguous, striped (Striped Attention, section 3), or zigzag (Llama 3, section 3.3.2)."""
    if how == "striped":
        return [list(range(rank, s, n)) for rank in range(n)]
    pieces, chunks, start = n if how == "contiguous" else 2 * n, [], 0
    for size in chunk_sizes(s, pieces):
        chunks.append(list(range(start, start + size)))
        start += size
    return chunks if how == "contiguous" else [chunks[rank] + chunks[2 * n - 1 - rank] for rank in range(n)]


@cache
def sizes(s: int, n: int, how: str) -> tuple[int, ...]:
    """The number of each rank's positions."""
    return tuple(len(own) for own in positions(s, n, how))


def pairs(s: int, n: int, how: str) -> list[list[int]]:
    """For each rank and each step of the ring, the number of pairs of a query and a key that it sees. In step t, rank r
    has the keys of rank r - t."""
    of = positions(s, n, how)
    return [[sum(bisect(of[rank - step], query) for query in of[rank]) for step in range(n)] for rank in range(n)]


def efficiency_contiguous(c: float, n: int) -> float:
    """The mean number of pairs over the slowest rank's: (Nc + 1)/((2N - 1)c + 1), in the limit N/(2N - 1)."""
    return (n * c + 1) / ((2 * n - 1) * c + 1)


def end(work: Sequence[Sequence[float]], layers: int) -> float:
    """When the last rank of a ring ends, if its messages take no time. work: by rank, then by step of a layer.

    A block leaves a rank when its step begins: so a rank begins a step when its last one has ended, and when the rank
    to its left has begun the step before."""
    n = len(work)
    ended = [0.0] * n
    for _ in range(layers):
        begun = list(ended)
        for step in range(n):
            if step:
                begun = [max(ended[rank], begun[rank - 1]) for rank in range(n)]
            ended = [start + work[rank][step] for rank, start in enumerate(begun)]
    return max(ended)


# ---- elements that each rank sends for one layer and one sequence ----------------------------------------------------


def passed_on(of: Sequence[int], width: float) -> list[float]:
    """Keys and values of all ranks except the next one: 2g·s·h(N-1)/N. width: gh. The same for ring and all-gather."""
    s = sum(of)
    return [2 * width * (s - of[(rank + 1) % len(of)]) for rank in range(len(of))]


def sent_home(of: Sequence[int], width: float) -> list[float]:
    """Gradients of the keys and values of all other ranks: 2g·s·h(N-1)/N, around the ring or by a reduce-scatter."""
    s = sum(of)
    return [2 * width * (s - own) for own in of]


def positions_for_heads(of: Sequence[int], heads: Sequence[int], width: float) -> list[float]:
    """Ulysses: for a rank's positions, what belongs to the heads that other ranks take. heads: key/value heads that
    each rank takes; width: elements per position that belong to one of them."""
    return [own * width * (sum(heads) - heads[rank]) for rank, own in enumerate(of)]


def heads_for_positions(of: Sequence[int], heads: Sequence[int], width: float) -> list[float]:
    """The way back: for a rank's heads, what belongs to the positions that other ranks have."""
    return [heads[rank] * width * (sum(of) - own) for rank, own in enumerate(of)]


def kept_for_attention(
    scheme: str, own: int, c: int, s: int, b: int, a: int, kv: int, d: int, p: int, wide: int
) -> float:
    """Bytes that a layer keeps in place of attention's core, as²b elements, in addition to its other activations for c
    positions. Ring and all-gather keep the log-sum-exp of each query. Ulysses keeps that and the results of `own` of
    the kv key/value heads, for s positions; and their queries, keys and values in place of those of c positions."""
    if scheme != "ulysses":
        return wide * a * c * b
    group = a // kv
    return s * b * own * (p * d * (2 * group + 2) + wide * group) - c * b * p * (a + 2 * kv) * d


def ulysses_over_ring(n: int, g: float) -> float:
    """What Ulysses sends forward, (2 + 2g)·s·h(N-1)/N², over the ring's 2g·s·h(N-1)/N: it wins for N > (1 + g)/g."""
    return (1 + g) / (g * n)


# ---- what they print -------------------------------------------------------------------------------------------------


def _measured(run: str, ideal: float, **cells: tuple[float, str]) -> list[Figure]:
    """A row of the README's table: iterations a second, and the percentage of the ideal, an eighth of one GPU's rate.
    For the ring, efficiency_contiguous has the limit 8/15 = 53.3 %."""
    return [
        Figure(
            "ring-flash-attention", f"{run}, {name}", printed, "%", f"{rate} / {ideal} iterations a second",
            100 * rate / ideal,
            (100 * (rate - 0.05) / (ideal + 0.05), 100 * (rate + 0.05) / (ideal - 0.05)),  # both are rounded
            evidence="code",
        )
        for name, (rate, printed) in cells.items()
    ]  # fmt: skip


def _volume(cell: str, printed: str, unit: str, formula: str) -> Figure:
    """Elements for a layer's forward, where P ranks divide N positions of width h. Of a message of M, a rank sends
    M/P to each other rank, so the count is multiplied by P/(P-1)."""
    return Figure("DeepSpeed-Ulysses", cell, printed, unit, formula, evidence="code")


ULYSSES = {  # deepspeedai/DeepSpeed, blogs/deepspeed-ulysses, "Significant communication volume reduction"
    "before": _volume("all-to-all before attention, all ranks", "3", "Nh", "Σ sent·P/(P-1)"),
    "both": _volume("with the one after it, a link", "4", "Nh/P", "sent·P/(P-1)"),
    "Megatron-LM": _volume("Megatron-LM's sequence parallelism, a link", "4", "Nh", "sent·P/(P-1)"),
}
MEASURED = [  # zhuzilin/ring-flash-attention, README, August 2025: on 8 GPUs of each kind
    *_measured("H800, forward", 73.9, ring=(38.5, "52.1"), zigzag=(63.0, "85.2"), stripe=(55.0, "74.4")),
    *_measured("H800, both", 19.3, ring=(10.4, "53.9"), zigzag=(17.4, "90.2"), stripe=(16.0, "82.9")),
    *_measured("A100, forward", 46.7, ring=(24.0, "51.4"), zigzag=(38.2, "81.7"), stripe=(32.5, "69.6")),
    *_measured("A100, both", 11.8, ring=(6.2, "52.5"), zigzag=(10.6, "89.8"), stripe=(9.75, "82.6")),
]
FIGURES = [*MEASURED, *ULYSSES.values()]
