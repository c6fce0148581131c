"""OPT, BLOOM, GPT-NeoX, DeepSeek-V3: published runs. By the formulas of `ptd`: OPT-175B (Zhang et al. 2022, arXiv
2205.01068), BLOOM (its authors' log and configuration), GPT-NeoX-20B (Black et al. 2022, arXiv 2204.06745, and its
model card), DeepSeek-V3 (2024, arXiv 2412.19437).
"""

from minidist.papers import ptd
from minidist.papers.figure import SECOND, Figure, from_rounded


class NeoX:
    """GPT-NeoX-20B's sizes (its model card): rotary positions; the head has a matrix of its own."""

    LAYERS, H, HEADS, V, CONTEXTS, S = 44, 6144, 64, 50_432, 1538, 2048


NEOX_TOKENS = Figure(
    "GPT-NeoX-20B", "tokens of a step", "3.15", "M", "1,538 contexts of 2,048", NeoX.CONTEXTS * NeoX.S / 1e6,
    evidence=SECOND,
)  # fmt: skip

HOURS, TOKENS, GPUS = 2664e3, 14.8, 2048  # of DeepSeek-V3's pre-training: H800 hours, trillions of tokens

BLOOM_SECONDS = Figure("BLOOM", "a step", "105", "s", "measured: 384 A100", evidence="code")
NEOX_RATE = Figure("GPT-NeoX-20B", "a GPU's rate", "117", "teraFLOP/s", "measured: 96 A100", evidence=SECOND)
OPT_RATE = Figure("OPT-175B", "a GPU's rate", "147", "teraFLOP/s", "measured: 992 A100")

THOUSAND_HOURS = Figure(
    "DeepSeek-V3", "thousand GPU hours a trillion tokens", "180", "", "2,664 / 14.8", HOURS / TOKENS / 1e3,
    evidence=SECOND,
)  # fmt: skip

# 300 billion tokens on 992 A100, at 147 teraFLOP/s that count what is computed again; and 384 GPUs, at 105 seconds for
# a step of 2,048 sequences.
OPT_DAYS = from_rounded(lambda rate: ptd.days(300e9, 175e9, 992, rate * 1e12), "147")
BLOOM_RATE = from_rounded(lambda seconds: ptd.flops(2048, 70, 14_336, 250_880) / seconds / 384 / 1e12, "105")
FIGURES = [
    OPT_RATE,
    Figure("OPT-175B", "days", "33", "days", "8TP/(nX)", *OPT_DAYS, SECOND),
    BLOOM_SECONDS,
    Figure("BLOOM", "a GPU's rate", "150", "teraFLOP/s", "equation 3 of PTD / (n·105 s)", *BLOOM_RATE, SECOND),
    NEOX_RATE,
    NEOX_TOKENS,
    THOUSAND_HOURS,
    Figure(
        "DeepSeek-V3", "days a trillion tokens", "3.7", "days", "180 thousand hours / 2,048 GPUs",
        HOURS / TOKENS / GPUS / 24, evidence=SECOND,
    ),
    Figure(
        "DeepSeek-V3", "cost", "5.576", "million $", "2,788 thousand hours at 2 $", 2788e3 * 2 / 1e6, evidence=SECOND
    ),
]  # fmt: skip
