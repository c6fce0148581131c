"""Muon (Jordan et al. 2024), and its sharding: Moonlight (Liu et al. 2025, arXiv 2502.16982, section 2.3)."""

import math
from collections.abc import Sequence

from minidist.papers.figure import SECOND, Figure
from minidist.papers.models import Model, padded

GATHERED = 2  # bytes of an element of momentum on its way to whole matrices (Moonlight: bfloat16)


def matrices(model: Model) -> list[int]:
    """Elements of each matrix of the blocks: what Muon updates."""
    return [math.prod(shape) for block in model.shapes[1:-1] for shape in block if len(shape) == 2]


def others(model: Model) -> list[int]:
    """Elements of each unit that AdamW updates: embedding, the vectors of each block, head."""
    shapes = model.shapes
    shapes[1:-1] = [[shape for shape in block if len(shape) == 1] for block in shapes[1:-1]]
    return [sum(map(math.prod, unit)) for unit in shapes]


def shares(sizes: Sequence[int], n: int) -> list[int]:
    """Elements that each of n ranks owns, if whole matrices are given out: the largest first, to whom has least."""
    owned = [0] * n
    for size in sorted(sizes, reverse=True):
        owned[owned.index(min(owned))] += size
    return owned


def padding(k: int, n: int) -> float:
    """nanochat's: k equal matrices on n ranks are padded to ceil(k/n) each, times this."""
    return -(-k // n) * n / k


def padded_sum(sizes: Sequence[int], n: int) -> int:
    return sum(padded(size, n) for size in sizes)


# ---- what they print -------------------------------------------------------------------------------------------------

WORK = Figure(
    "Moonlight §2.3", "bytes sent, at most, relative to AdamW's", "1.25", "times", "(4 + 2 + 4)/(4 + 4)",
    (4 + GATHERED + 4) / (4 + 4),
)  # fmt: skip
HALF = Figure("Moonlight §2.3", "optimizer state, of AdamW's", "0.5", "", "4/8", 4 / 8)
LEAST = Figure(
    "Moonlight §2.3", "bytes sent, at least, relative to AdamW's", "1.5", "times", "(4 + 4)/(4 + 4)", (4 + 4) / (4 + 4),
    differs="the sentence before it has the interval (1, 1.25]: if no matrix is cut, nothing is gathered",
)  # fmt: skip
QWEN, GPUS, OF_MATRICES = 3.09e9, 8, 0.9  # parameters of Qwen2.5-3B, and the share that Muon updates
BEFORE = 34.5  # GiB of a GPU with AdamW
WITH_MUON = Figure(
    "DeepSpeed's blog on Muon", "Qwen2.5-3B, ZeRO-2, 8 GPUs: memory of one", "31.4", "GiB", "34.5 - 4·0.9Ψ/8/2³⁰",
    BEFORE - 4 * OF_MATRICES * QWEN / GPUS / 2**30, evidence=SECOND,
    differs="one float32 momentum less, of 90 % of 3.09 billion, is 1.3 GiB a GPU: the rest is something else",
)  # fmt: skip
FIGURES = [WORK, HALF, LEAST, WITH_MUON]
