"""Activations with tensor and sequence parallelism: Korthikanti et al. 2022, arXiv 2205.05198.

t ranks share every layer; s: length of a sequence, b: sequences in a micro-batch, h: width, a: heads.
"""

from typing import NamedTuple

from minidist.papers.collectives import chunk_sizes
from minidist.papers.figure import Figure, decimals


def layer_activations(
    s: int, b: int, h: int, a: int, t: int = 1, sequence: bool = False, recompute: str = "none", p: int = 2,
    dropout: bool = True,
) -> float:  # fmt: skip
    """Bytes of activations that a layer of GPT keeps on each of t ranks (Korthikanti et al., table 2).

    With p = 2 bytes an element and 1 for an element of a dropout mask: sbh(10 + 24/t + 5as/ht), where attention's core,
    the last term, is what selective recomputation recomputes. Sequence parallelism divides the 10 as well. Without
    dropout there are no masks, and the softmax's output serves for what dropout would leave of it.
    """
    apart = t if sequence else 1
    if recompute == "full":
        return s * b * h * p / apart
    shared = 4 * p + 2 * dropout  # the input of both norms and of both column-parallel layers, and two dropout masks
    divided = 12 * p  # q, k, v, the input of the projection; the input of GeLU and its output, 4h each
    scores = 0 if recompute == "selective" else core(s, b, a, 1, p, dropout)
    return s * b * h * shared / apart + (s * b * h * divided + scores) / t


def layer_activations_llama(
    s: int, b: int, h: int, a: int, kv: int, f: int, t: int = 1, sequence: bool = False, recompute: str = "none",
    p: int = 2, dropout: bool = True,
) -> list[float]:  # fmt: skip
    """The same count for a layer of Llama, for each of t ranks: k and v are kv/a as wide, the MLP keeps 2f and f."""
    apart = t if sequence else 1
    if recompute == "full":
        return [s * b * h * p / apart] * t
    scores = 0 if recompute == "selective" else core(s, b, a, 1, p, dropout)
    attention = s * b * (2 * h + 2 * (h // a * kv)) * p
    shared = s * b * h * (4 * p + 2 * dropout) / apart
    return [shared + (attention + scores) / t + s * b * 3 * part * p for part in chunk_sizes(f, t)]


def core(s: int, b: int, a: int, t: int = 1, p: int = 2, dropout: bool = True) -> float:
    """Bytes of attention's core on each of t ranks, 5as²b/t: the softmax's output, its dropout mask, and what that has
    left."""
    return a * s * s * b * (2 * p + 1 if dropout else p) / t


def gone_before_core(
    s: int, b: int, h: int, t: int = 1, sequence: bool = False, p: int = 2, dropout: bool = True
) -> float:
    """Of a layer's activations, those that its backward has used when it comes to attention's core: the MLP's, the
    projection's, and both masks. With selective recomputation the core is there only from then on."""
    apart = t if sequence else 1
    return s * b * h * ((2 * p + 2 * dropout) / apart + 9 * p / t)


def gone_before_core_llama(
    s: int, b: int, h: int, f: int, t: int = 1, sequence: bool = False, p: int = 2, dropout: bool = True
) -> list[float]:
    """The same for a layer of Llama, for each of t ranks."""
    shared = s * b * h * (2 * p + 2 * dropout) / (t if sequence else 1)
    return [shared + s * b * h * p / t + s * b * 3 * part * p for part in chunk_sizes(f, t)]


# ---- what it prints --------------------------------------------------------------------------------------------------


class Model(NamedTuple):
    """A row of table 3; s = 2,048 and t = 8 in all of them."""

    a: int
    h: int
    layers: int
    b: int


TABLE_3 = {
    "22B": Model(64, 6144, 48, 4),
    "175B": Model(96, 12288, 96, 1),
    "530B": Model(128, 20480, 105, 1),
    "1T": Model(160, 25600, 128, 1),
}


def saved_by_selective(model: Model) -> float:
    """Per cent of a layer's activations that selective recomputation does not keep: (5as/h)/(34 + 5as/h)."""
    everything, kept = (
        layer_activations(2048, model.b, model.h, model.a, recompute=recompute) for recompute in ("none", "selective")
    )
    return 100 * (1 - kept / everything)


FIGURES = [
    Figure(
        "Korthikanti §5", f"{name}, saved", printed, "%", "(5as/h)/(34 + 5as/h)", saved_by_selective(model), decimals(0)
    )
    for name, printed, model in (("GPT-3", "70", TABLE_3["175B"]), ("MT-NLG", "65", TABLE_3["530B"]))
]
