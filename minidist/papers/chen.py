"""Activation checkpointing: Chen, Xu, Zhang & Guestrin, "Training deep nets with sublinear memory cost", 2016, arXiv
1604.06174.

Some of n layers keep only their input, and are recomputed in the backward. The formulas count inputs, and layers with
all their activations; `korthikanti.py` says how many bytes these are. A policy goes by its name on the command line:
none, selective, full, every:K, sqrt, log.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from minidist.papers.figure import Figure


class Kept(NamedTuple):
    """A number of layers' inputs, and a number of layers with all their activations."""

    inputs: int
    layers: int


def interval(recompute: str, n: int) -> int:
    """How many of n layers are recomputed together: K. With sqrt, the K with the smallest K + n/K."""
    return {"full": 1, "sqrt": max(1, round(math.sqrt(n)))}.get(recompute) or int(recompute.split(":")[1])


def values(n: int, k: int) -> int:
    """The paper's k + n/k: the values of a chain of n equal layers that are held at once, the inputs of the segments
    and what the layers of one segment make."""
    return k + -(-n // k)


def after_forward(recompute: str, n: int) -> Kept:
    """What is kept until the backward: with segments of K layers, ⌈n/K⌉ inputs; with halves of halves (log), ⌊log₂n⌋
    inputs, and the last layer, whose backward is first."""
    if n == 0 or recompute in ("none", "selective"):
        return Kept(0, n)
    if recompute == "log":
        return Kept(n.bit_length() - 1, 1)
    return Kept(-(-n // interval(recompute, n)), 0)


def at_most(recompute: str, n: int) -> list[Kept]:
    """What is kept at the moments that may take most bytes. One is when the last segment has been recomputed, and the
    other segments' inputs are still kept. If the last segment is short, the other is when the one before it has been
    recomputed."""
    if n == 0 or recompute in ("none", "selective", "log"):
        return [after_forward(recompute, n)]
    k = interval(recompute, n)
    segments = -(-n // k)
    last = Kept(segments - 1, n - k * (segments - 1))
    return [last, Kept(segments - 2, k)] if segments > 1 else [last]


def peak_bytes(recompute: str, n: int, given: float, layer: float) -> float:
    """The most bytes that are kept at a time. given: bytes of an input; layer: bytes of a layer's activations."""
    return max(kept.inputs * given + kept.layers * layer for kept in at_most(recompute, n))


def runs_again(recompute: str, n: int) -> int:
    """Forwards of layers that the backward recomputes: one for each layer; with halves of halves (n/2)·log₂n, if n is a
    power of two."""
    if recompute in ("none", "selective"):
        return 0
    return _halved(n, lambda half: half) if recompute == "log" else n


def count_regathered_layers(recompute: str, n: int) -> int:
    """Layers whose sharded parameters must be gathered just for those forwards: all except the last one of a segment,
    whose backward follows at once."""
    if n == 0 or recompute in ("none", "selective"):
        return 0
    return _halved(n, lambda half: half - 1) if recompute == "log" else n - -(-n // interval(recompute, n))


def _halved(n: int, cost: Callable[[int], int]) -> int:
    """c(n) = cost(⌈n/2⌉) + c(⌈n/2⌉) + c(⌊n/2⌋): the first half is recomputed, then both are halved; c(1) = 0."""
    if n < 2:
        return 0
    first, second = n - n // 2, n // 2
    return cost(first) + _halved(first, cost) + _halved(second, cost)


def best_interval(n: int, given: float, layer: float) -> float:
    """The K for which n/K inputs and K layers' activations take least: √(n·input/layer). Chen's √n is for layers that
    keep no more than their input."""
    return math.sqrt(n * given / layer)


# ---- what it prints --------------------------------------------------------------------------------------------------

FIGURES = [
    Figure("Chen, abstract", cell, printed, unit, "measured: a ResNet of 1,000 layers")
    for cell, printed, unit in (
        ("memory", "48", "G"),
        ("memory, recomputing", "7", "G"),
        ("time that it takes more", "30", "%"),
    )
]
