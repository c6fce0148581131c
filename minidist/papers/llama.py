"""Llama: Touvron et al. 2023, arXiv 2302.13971. Its parameters, whole, and sharded over t ranks as Megatron-LM cuts
GPT's.

v: vocabulary, h: width, a: heads, kv: key/value heads, f: the MLP's width.
"""

from dataclasses import dataclass
from typing import ClassVar

from minidist.papers import chen
from minidist.papers.collectives import chunk_sizes
from minidist.papers.figure import Figure, format_whole
from minidist.papers.korthikanti import layer_activations_llama
from minidist.papers.megatron import padded_vocabulary


def mlp_width(h: int, multiple: int = 8) -> int:
    """f: two thirds of GPT's 4h, for as many parameters in three matrices as in two (section 2.2), up to a multiple."""
    return -(-int(8 * h / 3) // multiple) * multiple


def count_cut_and_whole(
    v: int, h: int, layers: int, a: int, kv: int, f: int, t: int = 1, tied: bool = False
) -> list[list[tuple[int, int]]]:
    """For each of t ranks, its parameters of embedding, layers and head: those that are cut, and those that every rank
    has (the norms). The kv key/value heads and the MLP's width f need not be divisible by t."""
    vocabulary = padded_vocabulary(v, t) * h // t
    attention = (2 * h * h + 2 * h * (h // a * kv)) // t
    blocks = [(attention + 3 * h * part, 2 * h) for part in chunk_sizes(f, t)]
    return [[(vocabulary, 0), *[block] * layers, (0 if tied else vocabulary, h)] for block in blocks]


def parameter_sizes(v: int, h: int, layers: int, a: int, kv: int, f: int, tied: bool = False) -> list[list[int]]:
    """By unit (embedding, layers, head), the elements of each parameter. Q, K and V are one matrix here, and so are the
    gate and the way up."""
    layer = [h * (h + 2 * (h // a * kv)), h * h, 2 * f * h, f * h, h, h]
    return [[v * h], *[layer] * layers, [*[v * h] * (not tied), h]]


def units(v: int, h: int, layers: int, a: int, kv: int, f: int, t: int = 1, tied: bool = False) -> list[list[int]]:
    """For each of t ranks, its parameters of embedding, layers and head."""
    return [[sum(both) for both in rank] for rank in count_cut_and_whole(v, h, layers, a, kv, f, t, tied)]


def parameters(v: int, h: int, layers: int, a: int, kv: int, f: int, t: int = 1, tied: bool = False) -> list[int]:
    """Parameters on each of t ranks."""
    return [sum(rank) for rank in units(v, h, layers, a, kv, f, t, tied)]


@dataclass(frozen=True)
class LlamaShape:
    """A Llama as the papers' tables describe it; s: positions that it was trained on."""

    h: int
    layers: int
    a: int
    kv: int
    f: int
    s: int
    v: int = 32_000
    tied: bool = False  # the head reads the embedding's matrix

    family: ClassVar = "llama"  # what --model calls it

    @property
    def units(self) -> list[int]:
        """Parameters of embedding, layers and head."""
        [rank] = units(self.v, self.h, self.layers, self.a, self.kv, self.f, tied=self.tied)
        return rank

    @property
    def parameter_sizes(self) -> list[list[int]]:
        """Elements of each parameter, by unit."""
        return parameter_sizes(self.v, self.h, self.layers, self.a, self.kv, self.f, self.tied)

    @property
    def parameters(self) -> int:
        return sum(self.units)

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest single layer: the embedding's matrix, or one of the MLP's three."""
        return max(self.v * self.h, self.h * self.f)

    def activations(self, b: int, recompute: str, p: int, s: int | None = None) -> float:
        """Bytes that the layers keep of a micro-batch of b sequences of s, without dropout, p bytes an element."""
        sizes = s or self.s, b, self.h, self.a, self.kv, self.f
        [layer], [given] = (
            layer_activations_llama(*sizes, recompute=what, p=p, dropout=False)
            for what in ("selective" if recompute == "selective" else "none", "full")
        )
        kept = chen.after_forward(recompute, self.layers)
        return kept.inputs * given + kept.layers * layer


# Llama 2 (Touvron et al. 2023, arXiv 2307.09288) has the first one's sizes, except 70B, and twice the positions. There
# was no Llama 2 of 34B; Code Llama (Rozière et al. 2023) has one.
MODELS = {
    "llama-7b": LlamaShape(4096, 32, 32, 32, 11_008, 2048),
    "llama-13b": LlamaShape(5120, 40, 40, 40, 13_824, 2048),
    "llama-30b": LlamaShape(6656, 60, 52, 52, 17_920, 2048),
    "llama-65b": LlamaShape(8192, 80, 64, 64, 22_016, 2048),
    "llama2-7b": LlamaShape(4096, 32, 32, 32, 11_008, 4096),
    "llama2-13b": LlamaShape(5120, 40, 40, 40, 13_824, 4096),
    "llama2-70b": LlamaShape(8192, 80, 64, 8, 28_672, 4096),
    "codellama-7b": LlamaShape(4096, 32, 32, 32, 11_008, 16_384, v=32_016),
    "codellama-34b": LlamaShape(8192, 48, 64, 8, 22_016, 16_384),
}

PRINTED = {  # of the models above
    "llama-7b": ("7B", "6,738,415,616"),
    "llama-13b": ("13B", "13,015,864,320"),
    "llama-30b": ("30B", "32,528,943,616"),
    "llama2-70b": ("2, 70B", "68,976,648,192"),
    "codellama-34b": ("Code, 34B", "33,743,970,304"),
}
FIGURES = [
    Figure(
        "Llama's weights", name, printed, "parameters", "2vh + h + l(2h² + 2h²·kv/a + 3hf + 2h)",
        MODELS[model].parameters, format_whole, evidence="a second source",
    )
    for model, (name, printed) in PRINTED.items()
]  # fmt: skip
