"""Switch Transformer: Fedus, Zoph & Shazeer, JMLR 2022, arXiv 2101.03961. How tokens find experts, and what it costs.

n ranks share the batch, and each has T tokens of it; p of them divide E experts; k: experts of a token; h: width; cf:
the capacity factor.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from minidist.papers.collectives import chunk_sizes
from minidist.papers.figure import Figure

ALPHA = 1e-2  # section 2.2


def capacity(tokens: Fraction, experts: int, k: int, factor: float) -> int:
    """Rows for which an expert has room (equation 3), of the tokens of one rank; with k choices, GShard's."""
    return math.ceil(k * Fraction(str(factor)) * tokens / experts)


def rows_of_capacity(tokens: Fraction, experts: int, k: int, factor: float, p: int) -> tuple[list[int], list[int]]:
    """For each of p ranks, the rows that leave it for experts elsewhere, and those that arrive, full or not. Both are
    k·cf·T·(p-1)/p, if the capacity is whole and p divides the experts."""
    room, here = capacity(tokens, experts, k, factor), chunk_sizes(experts, p)
    return [room * (experts - own) for own in here], [room * own * (p - 1) for own in here]


def rows_without_capacity(chosen: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """For each of p ranks, the rows that leave it for experts elsewhere, and those that arrive (MegaBlocks, Gale et al.
    2022: no choice is dropped). chosen: how often each rank's tokens choose each expert."""
    sizes = chunk_sizes(len(chosen[0]), len(chosen))
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]
    to = [[sum(of[start : start + size]) for start, size in zip(starts, sizes, strict=True)] for of in chosen]
    ranks = range(len(sizes))
    going = [sum(to[rank][other] for other in ranks if other != rank) for rank in ranks]
    coming = [sum(to[other][rank] for other in ranks if other != rank) for rank in ranks]
    return going, coming


def dropped(chosen: Sequence[int], room: int | None) -> int:
    """The number of choices that find their expert full. chosen: how often each expert is chosen."""
    return 0 if room is None else sum(max(0, number - room) for number in chosen)


def balance(alpha: float, shares: Sequence[float], means: Sequence[float]) -> float:
    """The loss of equations 4 to 6: α·E·Σ f P, from the experts' shares of all choices and mean probabilities."""
    return alpha * len(shares) * sum(f * p for f, p in zip(shares, means, strict=True))


def mixture_activations(
    tokens: int, experts: int, k: int, h: int, hidden: float, made: int, arrived: float, p: int, wide: int,
    balanced: bool,
) -> float:  # fmt: skip
    """Bytes that a mixture keeps for its backward, in addition to its normed input, as a layer's MLP does. For each of
    the `arrived` rows its experts keep the input, and `hidden` elements between their matrices. For each of the `made`
    rows that come back it keeps the result and, in 4 bytes, which choice it is. For each choice of a token: expert and
    row, in 4 bytes each, and the gate. And the router's probabilities, in full precision. balanced: also the experts'
    shares of choices."""
    of_rows = p * (arrived * (h + hidden) + made * h) + 4 * made
    return of_rows + tokens * k * (8 + wide) + tokens * experts * wide + experts * wide * balanced


# ---- what it prints --------------------------------------------------------------------------------------------------

UNIFORM = Figure(
    "Switch Transformer §2.2", "balance loss of a uniform router", "0.01", "", "αE·Σ 1/E², α = 10⁻²",
    balance(ALPHA, [1 / 64] * 64, [1 / 64] * 64),
)  # fmt: skip
FIGURES = [UNIFORM]
