"""Compressed gradients: 1-bit Adam (Tang et al., ICML 2021), Deep Gradient Compression (DGC: Lin et al., ICLR 2018) and
PowerSGD (Vogels et al., NeurIPS 2019)."""

import math
from collections.abc import Sequence
from functools import partial
from operator import truediv

from minidist.papers.figure import Figure, from_rounded


def sign_bytes(size: int, n: int) -> int:
    """1-bit Adam, section 5: a bit for each of size elements, in two directions, in whole bytes for each rank's chunk
    of ⌈size/N⌉. Scales come on top."""
    return 2 * (n - 1) * math.ceil(math.ceil(size / n) / 8)


def largest(size: int, density: float) -> int:
    """k: elements that a rank sends of size (DGC, algorithm 1)."""
    return math.ceil(density * size)


def largest_bytes(size: int, density: float, n: int, nbytes: int) -> int:
    """Places (int32) and values of each rank, around a ring all-gather: (N-1)·k·(4 + nbytes)."""
    return (n - 1) * largest(size, density) * (4 + nbytes)


def advantage(n: int, density: float) -> float:
    """Of 8 bytes for each element that is sent, over a dense float32 ring: 2Ψ·4(N-1)/N over 8(N-1)·density·Ψ. DGC's
    own ratio (section 4.1) counts what one worker sends up, once."""
    return 1 / (n * density)


def low_rank_elements(shapes: Sequence[tuple[int, ...]], rank: int) -> tuple[int, int]:
    """Elements of the two all-reduces (PowerSGD, algorithm 1): r·m for each (m, k) matrix that becomes smaller by it,
    with all of other arrays, then r·k."""
    first = second = 0
    for m, *rest in shapes:
        k = math.prod(rest)
        if rest and rank * (m + k) < m * k:
            first, second = first + rank * m, second + rank * k
        else:
            first += m * k
    return first, second


# ---- what they print -------------------------------------------------------------------------------------------------


def basic_block(c: int, out: int, shortcut: bool) -> list[tuple[int, ...]]:
    """A block of a ResNet: two 3x3 convolutions, with normalizations of two vectors each."""
    shapes: list[tuple[int, ...]] = [(out, c, 3, 3), (out,), (out,), (out, out, 3, 3), (out,), (out,)]
    return [*shapes, *([(out, c, 1, 1), (out,), (out,)] if shortcut else [])]


def resnet18() -> list[tuple[int, ...]]:
    """The parameters of ResNet-18 for CIFAR-10: 11,173,962 elements."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    for c, out in ((64, 64), (64, 128), (128, 256), (256, 512)):
        shapes += [*basic_block(c, out, c != out), *basic_block(out, out, False)]
    return [*shapes, (10, 512), (10,)]


STEPS = 24  # of an epoch: 50,000 images on 16 workers of 128 each
ELEMENTS = sum(map(math.prod, resnet18()))
RANKS = (1, 2, 4)
SENT = {r: sum(low_rank_elements(resnet18(), r)) for r in RANKS}


def mebibytes(elements: float) -> float:
    """Per epoch, in float32."""
    return elements * 4 * STEPS / 2**20


def printed(cell: str, number: str, unit: str, formula: str, value: float) -> Figure:
    return Figure("PowerSGD table 3", cell, number, unit, formula, value, evidence="a second source")


DENSE = printed("SGD, sent in an epoch", "1023", "MB", "4·24·Ψ/2²⁰", mebibytes(ELEMENTS))
LESS = {
    r: printed(f"rank {r}, less", number, "times", "Ψ/Σ r(m+k)", ELEMENTS / SENT[r])
    for r, number in zip(RANKS, ("243", "136", "72"), strict=True)
}
EPOCH = {
    r: printed(f"rank {r}, sent in an epoch", number, "MB", "4·24·Σ r(m+k)/2²⁰", mebibytes(SENT[r]))
    for r, number in zip(RANKS, ("4", "8", "14"), strict=True)
}
WARM_UP = 0.15  # of all steps
BITS = Figure("1-bit Adam §1", "compressed stage, less than float16", "16", "times", "16 bits/1 bit", 16.0)
WHOLE = Figure(
    "1-bit Adam §1", "whole training, less", "5", "times", "1/(w + (1-w)/16)", 1 / (WARM_UP + (1 - WARM_UP) / 16)
)
DGC = {"AlexNet": (232.56, "0.39", "597"), "ResNet-50": (97.49, "0.35", "277")}  # megabytes before and after, times
TIMES = [
    Figure("DGC table 3", f"{model}, less", ratio, "times", "size before/size after", *value)
    for model, (before, after, ratio) in DGC.items()
    for value in [from_rounded(partial(truediv, before), after)]
]
WARMING = {  # DGC's warm-up sends 1/4 of all elements in its first epoch, and of these 1/4 in each next one
    epoch: Figure("DGC §3.3", f"warm-up, epoch {epoch}: not sent", printed, "%", "100(1 - 1/4ⁿ)", 100 * (1 - 4**-epoch))
    for epoch, printed in enumerate(("75", "93.75", "98.4375", "99.6", "99.9"), 1)
}
DENSITY = 0.001
GONE = {
    n: Figure(
        "DGC, abstract", f"at least so much less, counted on {n:,} ranks", "270", "times", "1/(Nδ)",
        advantage(n, DENSITY),
        differs="it is what one worker sends up, once; all-gathered, what is sparse has 1/(Nδ) of a dense ring's",
    )
    for n in (512, 1024)
}  # fmt: skip
FIGURES = [BITS, WHOLE, *TIMES, *WARMING.values(), *GONE.values(), DENSE, *EPOCH.values(), *LESS.values()]
