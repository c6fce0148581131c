"""Mixtral: Jiang et al. 2024, arXiv 2401.04088; OLMoE: Muennighoff et al. 2024, arXiv 2409.02060. Their parameters: a
Llama's, with E experts for each MLP and a router for each layer; a token goes through k experts.
"""

from minidist.papers.decoder import Decoder
from minidist.papers.figure import SECOND, Figure
from minidist.papers.llama import llama


def mixture(h: int, layers: int, a: int, kv: int, f: int, experts: int, k: int, v: int, s: int) -> Decoder:
    """A Llama with experts; f: the width of one expert."""
    return llama(h, layers, a, kv, f, s, v).with_experts(experts, k)


MODELS = {
    "mixtral-8x7b": mixture(4096, 32, 32, 8, 14_336, 8, 2, 32_000, 32_768),
    "mixtral-8x22b": mixture(6144, 56, 48, 8, 16_384, 8, 2, 32_768, 65_536),
}
SHAPES = {  # by the names that the papers give them; OLMoE without its norms of queries and keys
    "Mixtral 8x7B": MODELS["mixtral-8x7b"],
    "Mixtral 8x22B": MODELS["mixtral-8x22b"],
    "OLMoE-1B-7B": mixture(2048, 16, 16, 16, 1024, 64, 8, 50_304, 4096),
}

PRINTED = {"Mixtral 8x7B": ("46.7", "12.9"), "Mixtral 8x22B": ("141", "39"), "OLMoE-1B-7B": ("6.9", "1.3")}


def _sizes(name: str) -> tuple[Figure, Figure]:
    """A model's parameters in billions, all and active."""
    of, (printed, active) = SHAPES[name], PRINTED[name]
    formula, less = "Llama + l((E-1)·3hf + Eh)", "all - l(E-k)·3hf"
    return (
        Figure(name, "all", printed, "B parameters", formula, of.parameters / 1e9, evidence=SECOND),
        Figure(name, "active", active, "B parameters", less, of.active / 1e9, evidence=SECOND),
    )


SIZES = {name: _sizes(name) for name in SHAPES}
FIGURES = [figure for pair in SIZES.values() for figure in pair]
