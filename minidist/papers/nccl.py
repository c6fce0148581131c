"""NCCL's benchmark, nccl-tests: its two bandwidths (doc/PERFORMANCE.md), and lines of logs that people have published.

Algorithm bandwidth is S/t: S is the whole array, also if a rank gives or gets a chunk of it. Bus bandwidth is that
times a factor: what of S the busiest rank must send at least. If all links are always busy, it is the rate of a link,
for any N. An algorithm that sends more than the factor, such as a tree, reaches less over the same links.
"""

from collections.abc import Callable

from minidist.papers.figure import Evidence, Figure, from_rounded

FACTORS: dict[str, tuple[str, Callable[[int], float]]] = {
    "all-reduce": ("2(N-1)/N", lambda n: 2 * (n - 1) / n),
    **dict.fromkeys(("reduce-scatter", "all-gather", "all-to-all"), ("(N-1)/N", lambda n: (n - 1) / n)),
    "broadcast": ("1", lambda n: 1),
}


def algorithm_bandwidth(nbytes: int, seconds: float) -> float:
    """GB/s."""
    return nbytes / seconds / 1e9


def bus_bandwidth(operation: str, n: int, algorithm: float) -> float:
    """GB/s, from the algorithm bandwidth on n ranks."""
    return FACTORS[operation][1](n) * algorithm


def _line(source: str, n: int, nbytes: int, us: str, algbw: str, busbw: str, evidence: Evidence) -> list[Figure]:
    """An all-reduce's line: each bandwidth from the rounded number on its left."""
    over_link = from_rounded(lambda algorithm: bus_bandwidth("all-reduce", n, algorithm), algbw)
    bus = Figure(source, f"busbw of {algbw}, {n} ranks", busbw, "GB/s", "2(N-1)/N·algbw", *over_link, evidence)
    if not us:
        return [bus]
    of_array = from_rounded(lambda time: algorithm_bandwidth(nbytes, time / 1e6), us)
    return [Figure(source, f"algbw, {nbytes:,} B in {us} µs", algbw, "GB/s", "S/t", *of_array, evidence), bus]


FIGURES = [
    *_line("nccl-tests, a log", 2, 33_554_432, "812.3", "41.31", "41.31", "a second source"),
    *_line("nccl-tests, a log", 16, 0, "", "43.81", "82.15", "a second source"),
    *_line("NVIDIA/nccl issue 527", 8, 1_073_741_824, "8142.6", "131.87", "230.77", "the paper"),
    *_line("NVIDIA/nccl issue 527", 16, 1_073_741_824, "35215", "30.49", "57.17", "the paper"),
]
