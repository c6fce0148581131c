"""DeepSpeed-MoE: Rajbhandari et al., ICML 2022, arXiv 2201.05596. Sizes of mixtures of experts."""

from minidist.papers import megatron
from minidist.papers.figure import Figure


def parameters(h: int, experts: int, layers: int = 24, v: int = 51_200, s: int = 2048) -> int:
    """A GPT with `experts` experts in every other layer: each is an MLP of 8h² + 5h, and the GPT has one of these.
    Gates are not counted."""
    return megatron.parameters(v, s, h, layers) + layers // 2 * (experts - 1) * (8 * h * h + 5 * h)


# ---- what it prints --------------------------------------------------------------------------------------------------

WIDTHS = (2048, 1024)

FIGURES = [
    Figure(
        "DeepSpeed-MoE", f"{base}+MoE-128", printed, "B parameters", "GPT + l/2·127·(8h² + 5h)",
        parameters(h, 128) / 1e9,
    )
    for base, h, printed in zip(("1.3B", "350M"), WIDTHS, ("52", "13"), strict=True)
]  # fmt: skip
