"""Chimera: Li and Hoefler, "Chimera: efficiently training large-scale neural networks with bidirectional pipelines",
SC 2021, arXiv 2107.06925. D: stages; N: micro-batches; stages count from 1."""

from minidist.papers.figure import Figure, decimals


def bubble(d: int, n: int) -> float:
    """The part of all time that a worker idles, if a backward takes as long as a forward: (D-2)/(2N+D-2) (table 2)."""
    return (d - 2) / (2 * n + d - 2)


def idle(d: int, backward: float) -> float:
    """The same for N = D, in forwards: D - 2 if a backward takes as long as a forward. If it takes longer, bubbles in
    the middle are added to those at the ends: (D-2) backwards, found by running the order for D = 4 to 16."""
    return (d - 2) * backward


def in_flight(d: int, n: int, stage: int) -> int:
    """Micro-batches that a worker holds, of both directions: from D/2 + 1 at the ends to D in the middle (table 2), in
    each direction as with 1F1B, of the at most D/2 that are there at a time."""
    ways = d - stage + 1, stage
    return sum(min(way, d // 2, n // 2) for way in ways)


# ---- what it prints --------------------------------------------------------------------------------------------------

TABLE_2 = {
    d: Figure(
        "Chimera Table 2", f"D = N = {d}, bubble", decimals(4)(bubble(d, d)), "", "(D-2)/(2N+D-2)", None, decimals(4),
        evidence="a second source",
    )
    for d in (4, 8, 16, 32)
}  # fmt: skip
FIGURES = list(TABLE_2.values())
