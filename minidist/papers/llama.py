"""Llama's parameters (Touvron et al. 2023, arXiv 2302.13971), undivided and cut over t ranks as Megatron-LM cuts GPT's.

v: vocabulary, h: width, a: heads, kv: key/value heads, f: the MLP's width.
"""

from minidist.papers.collectives import chunk_sizes
from minidist.papers.megatron import padded_vocabulary


def units(v: int, h: int, layers: int, a: int, kv: int, f: int, t: int = 1, tied: bool = False) -> list[list[int]]:
    """For each of t ranks, its parameters of embedding, layers and head, with kv key/value heads and an MLP of width f,
    which need not be divisible by t."""
    vocabulary = padded_vocabulary(v, t) * h // t
    attention = (2 * h * h + 2 * h * (h // a * kv)) // t
    blocks = [attention + 3 * h * part + 2 * h for part in chunk_sizes(f, t)]
    return [[vocabulary, *[block] * layers, h + (0 if tied else vocabulary)] for block in blocks]


def parameters(v: int, h: int, layers: int, a: int, kv: int, f: int, t: int = 1, tied: bool = False) -> list[int]:
    """Parameters on each of t ranks."""
    return [sum(rank) for rank in units(v, h, layers, a, kv, f, t, tied)]
