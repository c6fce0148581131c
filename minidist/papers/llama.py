"""Llama's parameters (Touvron et al. 2023, arXiv 2302.13971), undivided and cut over t ranks as Megatron-LM cuts GPT's.

v: vocabulary, h: width, a: heads, kv: key/value heads, f: the MLP's width.
"""

from minidist.papers.collectives import chunk_sizes
from minidist.papers.figure import Figure, whole
from minidist.papers.megatron import padded_vocabulary


def mlp_width(h: int, multiple: int = 8) -> int:
    """f: two thirds of GPT's 4h, for as many parameters in three matrices as in two (section 2.2), up to a multiple."""
    return -(-int(8 * h / 3) // multiple) * multiple


def cut_and_whole(
    v: int, h: int, layers: int, a: int, kv: int, f: int, t: int = 1, tied: bool = False
) -> list[list[tuple[int, int]]]:
    """For each of t ranks, its parameters of embedding, layers and head, of what is cut and of what every rank has (the
    norms), with kv key/value heads and an MLP of width f, which need not be divisible by t."""
    vocabulary = padded_vocabulary(v, t) * h // t
    attention = (2 * h * h + 2 * h * (h // a * kv)) // t
    blocks = [(attention + 3 * h * part, 2 * h) for part in chunk_sizes(f, t)]
    return [[(vocabulary, 0), *[block] * layers, (0 if tied else vocabulary, h)] for block in blocks]


def units(v: int, h: int, layers: int, a: int, kv: int, f: int, t: int = 1, tied: bool = False) -> list[list[int]]:
    """For each of t ranks, its parameters of embedding, layers and head."""
    return [[sum(both) for both in rank] for rank in cut_and_whole(v, h, layers, a, kv, f, t, tied)]


def parameters(v: int, h: int, layers: int, a: int, kv: int, f: int, t: int = 1, tied: bool = False) -> list[int]:
    """Parameters on each of t ranks."""
    return [sum(rank) for rank in units(v, h, layers, a, kv, f, t, tied)]


FIGURES = [
    Figure(
        "Llama's weights", name, printed, "parameters", "2vh + h + l(2h² + 2h²·kv/a + 3hf + 2h)", value, whole,
        evidence="a second source",
    )
    for name, printed, [value] in (
        ("7B", "6,738,415,616", parameters(32_000, 4096, 32, a=32, kv=32, f=11_008)),
        ("2, 70B", "68,976,648,192", parameters(32_000, 8192, 80, a=64, kv=8, f=28_672)),
    )
]  # fmt: skip
