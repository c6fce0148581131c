"""PaLM: Chowdhery et al. 2022, arXiv 2204.02311. How much of the hardware's peak the model uses."""

from minidist.papers.figure import SECOND, Figure, from_rounded


def flops_a_token(
    parameters: float, layers: int, heads: int, head_width: int, s: float, attention: bool = True
) -> float:
    """6N + 12LHQT: forward and backward of a token, without recomputation (appendix B)."""
    return 6 * parameters + 12 * layers * heads * head_width * s * attention


def mfu(tokens: float, flops: float, chips: int, peak: float) -> float:
    """Model FLOPs utilization: operations for the tokens of a second, relative to the peak of all chips."""
    return tokens * flops / (chips * peak)


# ---- what it prints --------------------------------------------------------------------------------------------------


def _mfu(cell: str, printed: str, attention: bool, formula: str) -> Figure:
    """The MFU of the 540B model on 6,144 TPU v4 of 275 teraFLOP/s, at 238.3 thousand tokens a second."""
    flops = flops_a_token(540.35e9, 118, 48, 256, 2048, attention)
    share = from_rounded(lambda thousands: 100 * mfu(thousands * 1e3, flops, 6144, 275e12), "238.3")
    return Figure("PaLM §4.1", cell, printed, "%", formula, *share)


LAYERS, H, HEADS, HEAD, V, S, BATCH = 118, 18_432, 48, 256, 256_000, 2048, 2048  # of 540B (table 1); and the batch


def parameters() -> int:
    """Parameters of 540B, without its norms: one key and one value for all heads, and SwiGLU of 4h (section 2)."""
    return LAYERS * (2 * H * HEADS * HEAD + 2 * H * HEAD + 3 * H * 4 * H) + V * H


def _of_540b() -> list[Figure]:
    """Its size, chips, and tokens of a step, which section 5 prints in millions."""
    return [
        Figure(
            "PaLM Table 1", "540B", "540.35", "B parameters", "L(2hHQ+2hQ+12h²)+Vh", parameters() / 1e9, evidence=SECOND
        ),
        Figure("PaLM §4", "chips", "6,144", "", "2 pods of 12·256", 2 * 12 * 256),
        Figure("PaLM §5", "tokens of a step", "4", "M", "2,048·2,048", S * BATCH / 1e6, evidence=SECOND),
        Figure("PaLM §4", "gradients between pods", "81", "Tbps", "1.3 GB of each host", evidence=SECOND),
    ]


TOKENS = Figure("PaLM §4.1", "tokens a second", "238.3", "K", "measured: 6,144 TPU v4")
FIGURES = [
    TOKENS,
    *_of_540b(),
    _mfu("MFU without attention", "45.7", False, "6N"),
    _mfu("MFU", "46.2", True, "6N + 12LHQT"),
]
