"""Llama 3: Grattafiori et al. 2024, arXiv 2407.21783. Its sizes, of table 3 and the released models; how the largest
was trained, and what interrupted it."""

from typing import NamedTuple

from minidist.papers.figure import Figure
from minidist.papers.llama import llama

MODELS = {
    "llama3-8b": llama(4096, 32, 32, 8, 14_336, 8192, v=128_256),
    "llama3-70b": llama(8192, 80, 64, 8, 28_672, 8192, v=128_256),
    "llama3-405b": llama(16_384, 126, 128, 8, 53_248, 8192, v=128_256),
}


def bubble(p: int, m: int, v: int) -> float:
    """Idle time relative to the time of the work, for any number of micro-batches that go through a chunk before the
    next: (PP-1)/(V·M) (section 3.3.2)."""
    return (p - 1) / (v * m)


H100 = 989.4e12  # operations a second at most, in bfloat16

# ---- what it prints --------------------------------------------------------------------------------------------------


class PublishedRun(NamedTuple):
    """A row of table 4; every step has 16 M tokens."""

    tp: int
    cp: int
    pp: int
    dp: int
    context: int
    rate: Figure
    others: list[Figure]


def _layout(
    row: str, context: int, tp: int, cp: int, pp: int, dp: int, gpus: str, rate: int, mfu: str, differs: str
) -> PublishedRun:
    """A row of table 4: the GPUs of a layout, and the share of their peak that 430, 400 or 380 teraFLOP/s are."""
    measured = Figure("Llama 3 Table 4", f"{row}, a GPU", str(rate), "teraFLOP/s", "measured: H100")
    others = [
        Figure("Llama 3 Table 4", f"{row}, GPUs", gpus, "GPUs", "TP·CP·PP·DP", tp * cp * pp * dp),
        Figure(
            "Llama 3 Table 4", f"{row}, MFU", mfu, "%", "X / 989.4 teraFLOP/s", rate * 1e12 / H100 * 100,
            differs=differs,
        ),
    ]  # fmt: skip
    return PublishedRun(tp, cp, pp, dp, context, measured, others)


TABLE_4 = [
    _layout("8K, DP 64", 8192, 8, 1, 16, 64, "8,192", 430, "43", ""),
    _layout("8K, DP 128", 8192, 8, 1, 16, 128, "16,384", 400, "41", "400/989.4 is 40.4 %; 400 itself is rounded"),
    _layout("131K, DP 8", 131_072, 8, 16, 16, 8, "16,384", 380, "38", ""),
]
UNEXPECTED = 419  # interruptions in 54 days, of 466


def _cause(cause: str, count: int, printed: str, differs: str = "") -> Figure:
    """A cause's share of the unexpected interruptions."""
    share = 100 * count / UNEXPECTED
    return Figure("Llama 3 Table 5", cause, printed, "%", f"{count} of 419", share, differs=differs)


FIGURES = [
    *(figure for run in TABLE_4 for figure in (*run.others, run.rate)),
    Figure("Llama 3 §3.3.4", "interruptions, unexpected", "419", "", "466 at all - 47 planned", 466 - 47),
    _cause("faulty GPU", 148, "30.1", differs="148 of 419 is 35.3 %; the percentages add up to 95"),
    _cause("GPU HBM3 memory", 72, "17.2"),
    _cause("GPU SRAM memory", 19, "4.5"),
    _cause("GPU system processor", 17, "4.1"),
    _cause("silent data corruption", 6, "1.4"),
    _cause("GPU thermal interface", 6, "1.4"),
    _cause(
        "GPU issues together", 148 + 72 + 19 + 17 + 6 + 6, "58.7",
        differs="the sum of the percentages as printed, 30.1 among them; of the counts it is 64.0 %",
    ),
]  # fmt: skip
