"""GPT-2's parameters (Radford et al. 2019), undivided and cut over t ranks as Shoeybi et al. 2019, section 3, cut them.

v: vocabulary, s: positions, h: width.
"""

from minidist.papers.megatron import padded_vocabulary


def units(v: int, s: int, h: int, layers: int, t: int = 1, tied: bool = True) -> list[int]:
    """Parameters of embedding, layers and head on each of t ranks.

    Divided: the matrices, 12h² in a layer, the biases of the column-parallel ones, 7h, and the vocabulary's. On every
    rank: the other biases and the norms, 6h in a layer, and the positions.
    """
    vocabulary = padded_vocabulary(v, t) * h // t
    layer = (12 * h * h + 7 * h) // t + 6 * h
    return [vocabulary + s * h, *[layer] * layers, 2 * h + (0 if tied else vocabulary)]


def parameters(v: int, s: int, h: int, layers: int, t: int = 1, tied: bool = True) -> int:
    """Parameters on each of t ranks."""
    return sum(units(v, s, h, layers, t, tied))
