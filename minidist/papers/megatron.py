"""Megatron-LM, tensor parallelism: Shoeybi et al. 2019, arXiv 1909.08053. And GPT-2's parameters, as it cuts them.

t ranks share every layer; v: vocabulary, s: positions, h: width.
"""

from typing import NamedTuple

from minidist.papers.figure import SECOND, Figure


def padded_vocabulary(v: int, multiple: int) -> int:
    """The vocabulary with entries that never occur, so that it divides (Megatron-LM: 50,257 to 51,200 for 8 ranks)."""
    return -(-v // multiple) * multiple


def count_cut_and_whole(v: int, s: int, h: int, layers: int, t: int = 1, tied: bool = True) -> list[tuple[int, int]]:
    """Parameters of embedding, layers and head on each of t ranks: those that are cut, and those that every rank has.

    Cut: the matrices, 12h² in a layer, the biases of the column-parallel ones, 7h, and the vocabulary's. On every rank:
    the other biases and the norms, 6h in a layer, and the positions.
    """
    vocabulary = padded_vocabulary(v, t) * h // t
    layer = ((12 * h * h + 7 * h) // t, 6 * h)
    return [(vocabulary, s * h), *[layer] * layers, (0 if tied else vocabulary, 2 * h)]


def units(v: int, s: int, h: int, layers: int, t: int = 1, tied: bool = True) -> list[int]:
    """Parameters of embedding, layers and head on each of t ranks."""
    return [sum(both) for both in count_cut_and_whole(v, s, h, layers, t, tied)]


def parameters(v: int, s: int, h: int, layers: int, t: int = 1, tied: bool = True) -> int:
    """Parameters on each of t ranks."""
    return sum(units(v, s, h, layers, t, tied))


# ---- what it prints --------------------------------------------------------------------------------------------------

VOCABULARY = padded_vocabulary(50_257, 128 * 8)


class SizedModel(NamedTuple):
    """A row of table 1: the size of a GPT-2 of 1,024 positions."""

    h: int
    layers: int
    size: Figure


def _model(printed: str, h: int, layers: int) -> SizedModel:
    """A row, its size computed."""
    billions = parameters(VOCABULARY, 1024, h, layers) / 1e9
    cell = f"h = {h}, {layers} layers"
    size = Figure("Megatron-LM Table 1", cell, printed, "B parameters", "(v + s)h + l(12h² + 13h) + 2h", billions)
    return SizedModel(h, layers, size)


TABLE_1 = [_model("1.2", 1536, 40), _model("2.5", 1920, 54), _model("4.2", 2304, 64), _model("8.3", 3072, 72)]

OPERATIONS = Figure("Megatron-LM Fig. 4", "communication operations in a layer", "4", "", "calls")
# The paper has b·s for the fused loss; its maximum, the target's logit and a sum are one of these each.
LOSS = Figure("Megatron-LM's code", "all-reduces of the loss", "3", "", "calls", evidence="code")

FIGURES = [
    OPERATIONS,
    LOSS,
    Figure("Megatron-LM", "padded vocabulary", "51,200", "entries", "50,257 up to a multiple of 128·8", VOCABULARY),
    *(row.size for row in TABLE_1),
    Figure(
        "Megatron-LM", "scaling to 512 GPUs", "76", "%", "15.1 petaFLOP/s / 512·39 teraFLOP/s",
        100 * 15.1e15 / (512 * 39e12), evidence=SECOND,
    ),
    Figure(
        "GPT-2's weights", "small", "124,439,808", "parameters", "(v + s)h + l(12h² + 13h) + 2h",
        parameters(50_257, 1024, 768, 12), evidence="code",
    ),
]  # fmt: skip
