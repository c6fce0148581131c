"""PaLM: Chowdhery et al. 2022, arXiv 2204.02311. How much of the hardware's peak the model uses."""

from minidist.papers.figure import Figure, decimals, from_rounded


def flops_a_token(parameters: float, layers: int, heads: int, head_width: int, s: int, attention: bool = True) -> float:
    """6N + 12LHQT: forward and backward of a token, without recomputation (appendix B)."""
    return 6 * parameters + 12 * layers * heads * head_width * s * attention


def mfu(tokens: float, flops: float, chips: int, peak: float) -> float:
    """Model FLOPs utilization: operations for the tokens of a second, relative to the peak of all chips."""
    return tokens * flops / (chips * peak)


# ---- what it prints --------------------------------------------------------------------------------------------------


def _mfu(cell: str, printed: str, attention: bool, formula: str) -> Figure:
    """Of the 540B model on 6,144 TPU v4 of 275 teraFLOP/s, at 238.3 thousand tokens a second."""
    flops = flops_a_token(540.35e9, 118, 48, 256, 2048, attention)
    value, bounds = from_rounded(lambda thousands: 100 * mfu(thousands * 1e3, flops, 6144, 275e12), "238.3")
    return Figure("PaLM §4.1", cell, printed, "%", formula, value, decimals(1), bounds=bounds)


TOKENS = Figure("PaLM §4.1", "tokens a second", "238.3", "K", "measured: 6,144 TPU v4", None, decimals(1))
FIGURES = [
    TOKENS,
    _mfu("MFU without attention", "45.7", False, "6N"),
    _mfu("MFU", "46.2", True, "6N + 12LHQT"),
]
