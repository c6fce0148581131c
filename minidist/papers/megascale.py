"""MegaScale: Jiang et al., NSDI 2024, arXiv 2402.15627. Its table 2 column by column: a model of 175 billion parameters
on up to 12,288 GPUs, by Megatron-LM and by MegaScale.
"""

from typing import NamedTuple

from minidist.papers import ptd
from minidist.papers.figure import Figure, from_rounded

LAYERS, H, S, V = 96, 12_288, 2048, 64_000  # table 1 and section 6.1
TOKENS = 300e9  # for which days are printed


def flops(batch: int) -> float:
    """Operations of the model in a step, without what is computed again: PTD's equation 3 with 72 in place of 96,
    72Bslh²(1 + s/(6h) + V/(12lh))."""
    return 72 * batch * S * LAYERS * H**2 * (1 + S / (6 * H) + V / (12 * LAYERS * H))


# ---- what it prints --------------------------------------------------------------------------------------------------

Bounds = tuple[float, float]
WINDOW = (
    "MegaScale's attention has a sliding window, and its MFU counts fewer operations for it; Megatron-LM's count, by"
    " which the other rows come out, is of all scores"
)


class WeakScalingRun(NamedTuple):
    """A row of table 2: eight tensor ranks, eight stages of six chunks (section 6.1)."""

    batch: int
    system: str
    gpus: int
    seconds: Figure
    others: list[Figure]


def _row(
    batch: int, system: str, gpus: int, seconds: str, rate: str, days: str, mfu: str, together: str, /, **differs: str
) -> WeakScalingRun:
    """A row of table 2. The seconds of a step give the tokens per second, in thousands, and the MFU. The tokens give
    the days, and the MFU gives the petaFLOP/s of all GPUs. differs: where the row disagrees with itself, by column."""

    def figure(column: str, printed: str, unit: str, formula: str, value: float, bounds: Bounds) -> Figure:
        cell, why = f"{system} {gpus} {column}", differs.get(column, "")
        return Figure("MegaScale Table 2", cell, printed, unit, formula, value, bounds, differs=why)

    in_second = from_rounded(lambda time: batch * S / time / 1e3, seconds)
    in_days = from_rounded(lambda thousands: TOKENS / (thousands * 1e3) / ptd.DAY, rate)
    share = from_rounded(lambda time: 100 * flops(batch) / (time * gpus * ptd.A100), seconds)
    of_all = from_rounded(lambda share: share / 100 * gpus * ptd.A100 / 1e15, mfu)
    measured = Figure("MegaScale Table 2", f"{system} {gpus} time", seconds, "s", "measured: A100")
    others = [
        figure("rate", rate, "K/s", "B·s/time", *in_second),
        figure("days", days, "days", "300B/rate", *in_days),
        figure("MFU", mfu, "%", "F/(312nt)", *share),
        figure("sum", together, "PF", "312n·MFU", *of_all),
    ]
    return WeakScalingRun(batch, system, gpus, measured, others)


MEGATRON, MEGASCALE = "Megatron-LM", "MegaScale"

TABLE_2 = [
    _row(768, MEGATRON, 256, "40.0", "39.3", "88.35", "53.0", "43.3", sum="53.0 % of 256·312 teraFLOP/s are 42.3"),
    _row(768, MEGATRON, 512, "21.2", "74.1", "46.86", "49.9", "77.6", sum="49.9 % of 512·312 teraFLOP/s are 79.7"),
    _row(768, MEGATRON, 768, "15.2", "103.8", "33.45", "46.7", "111.9"),
    _row(768, MEGATRON, 1024, "11.9", "132.7", "26.17", "44.7", "131.9", sum="44.7 % of 1024·312 teraFLOP/s are 142.8"),
    _row(
        768, MEGASCALE, 256, "32.0", "49.0", "70.86", "65.3", "52.2",
        rate="768·2048 tokens in 32.0 s are 49.2 thousand a second; the days are of 49.0", MFU=WINDOW,
    ),
    _row(768, MEGASCALE, 512, "16.5", "95.1", "36.51", "63.5", "101.4", MFU=WINDOW),
    _row(768, MEGASCALE, 768, "11.5", "136.7", "25.40", "61.3", "146.9"),  # its time has too few digits to tell
    _row(768, MEGASCALE, 1024, "8.9", "176.9", "19.62", "59.0", "188.5", MFU=WINDOW),
    _row(6144, MEGATRON, 3072, "29.02", "433.6", "8.01", "48.7", "466.8"),
    _row(6144, MEGATRON, 6144, "14.78", "851.6", "4.08", "47.8", "916.3"),
    _row(6144, MEGATRON, 8192, "12.24", "1027.9", "3.38", "43.3", "1106.7"),
    _row(
        6144, MEGATRON, 12_288, "8.57", "1466.8", "2.37", "41.2", "1579.5",
        rate="6144·2048 tokens in 8.57 s are 1,468.3 thousand a second",
    ),
    _row(6144, MEGASCALE, 3072, "23.66", "531.9", "6.53", "59.1", "566.5", MFU=WINDOW),
    _row(6144, MEGASCALE, 6144, "12.21", "1030.9", "3.37", "57.3", "1098.4", MFU=WINDOW),
    _row(
        6144, MEGASCALE, 8192, "9.56", "1315.6", "2.64", "54.9", "1400.6",
        MFU=WINDOW, sum="54.9 % of 8192·312 teraFLOP/s are 1403.2; 1400.6 are 54.8 %",
    ),
    _row(
        6144, MEGASCALE, 12_288, "6.34", "1984.0", "1.75", "55.2", "2166.3",
        MFU=WINDOW, sum="a digit mistyped: 55.2 % of 12,288·312 teraFLOP/s are 2116.3",
    ),
]  # fmt: skip

FIGURES = [figure for run in TABLE_2 for figure in (run.seconds, *run.others)]
