"""Chimera: Li and Hoefler, "Chimera: efficiently training large-scale neural networks with bidirectional pipelines",
SC 2021, arXiv 2107.06925. D: stages; N: micro-batches; stages count from 1."""

from minidist.papers.figure import SECOND, Figure, decimals


def bubble(d: int, n: int) -> float:
    """The share of the time in which a worker idles, if a backward takes as long as a forward: (D-2)/(2N+D-2) (table
    2). The order in `minidist/pp/folded.py` has this for every N that is a multiple of D."""
    return (d - 2) / (2 * n + d - 2)


def idle(d: int, n: int, backward: float) -> float:
    """A worker's idle time in forwards: D - 2 for any N, if a backward takes as long as a forward. For longer backwards
    the paper has no formula. We found one by running the order for D = 4 to 32: with N = D, D-2 backwards; with more,
    (N/D)(D-2)(backward-1) + D-3 if a backward takes two forwards or more."""
    if d == 2 or backward == 1:
        return d - 2
    return (d - 2) * backward if n == d else n / d * (d - 2) * (backward - 1) + d - 3


def in_flight(d: int, n: int, stage: int) -> int:
    """Micro-batches that a worker holds, in both directions together. With N = D, from D/2 + 1 at the ends to D in the
    middle (table 2): in each direction as in 1F1B with D/2 micro-batches. With more, the next ones fill up the ends: D
    everywhere."""
    ways = d - stage + 1, stage
    return sum(min(way, d // 2) for way in ways) if n == d else d


# ---- what it prints --------------------------------------------------------------------------------------------------

TABLE_2 = {
    d: Figure(
        "Chimera Table 2", f"D = N = {d}, bubble", decimals(4)(bubble(d, d)), "", "(D-2)/(2N+D-2)", evidence=SECOND
    )
    for d in (4, 8, 16, 32)
}
D = 8  # stages, and micro-batches, with which the rest of table 2 is filled in


def _row(scheme: str, **cells: str) -> dict[str, Figure]:
    """A row of table 2: its bubble; weights, in those of a stage, M_θ; and micro-batches held, M_a."""
    units = {"weights": "M_θ", "activations": "M_a"}
    return {
        what: Figure(
            "Chimera Table 2", f"{scheme}, D = N = {D}, {what.replace('_', ', ')}", printed,
            units.get(what.partition("_")[0], ""), "counted", evidence=SECOND,
        )
        for what, printed in cells.items()
    }  # fmt: skip


OTHERS = {  # by minidist's names of the schedules
    "pipedream": _row(
        "PipeDream", weights_least="1", weights_most=str(D), activations_least="1", activations_most=str(D)
    ),
    "2bw": _row("PipeDream-2BW", weights="2", activations_least="1", activations_most=str(D)),
    "gpipe": _row("GPipe", bubble="0.4667", weights="1", activations_most=str(D)),  # (D-1)/(N+D-1)
    "1f1b": _row("DAPPLE", bubble="0.4667", weights="1", activations_least="1", activations_most=str(D)),
    "chimera": _row("Chimera", weights="2", activations_least=str(D // 2 + 1), activations_most=str(D)),
}
FIGURES = [*TABLE_2.values(), *(figure for row in OTHERS.values() for figure in row.values())]
