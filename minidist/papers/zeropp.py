"""ZeRO++: Wang et al. 2023, arXiv 2306.10209.

c: elements of a rank's shard of a unit. W ranks on hosts of G, which are H = W/G.
"""

import math

from minidist.papers.figure import SECOND, Figure


def second_copy(psi: int, g: int) -> int:
    """Elements of the parameters' copy that G ranks share (section 3.2)."""
    return psi // g


def forward(c: int, w: int) -> int:
    """Bytes that a rank sends to gather parameters in int8, by shards of c (section 3.1)."""
    return (w - 1) * c


def backward(psi: int, g: int, nbytes: int) -> int:
    """Bytes that a rank sends to gather them within its host, from the second copy."""
    return psi // g * (g - 1) * nbytes


def within(c: int, h: int, g: int) -> int:
    """Bytes of gradients in int4 that a rank sends to the others of its host: for each, slices of H shards (3.3)."""
    return (g - 1) * math.ceil(h * c / 2)


def across(c: int, h: int) -> int:
    """And of the host's sums to one rank on each other host."""
    return (h - 1) * math.ceil(c / 2)


def scales(c: int, w: int, g: int, block: int) -> int:
    """Bytes of the scales (float32) of these three."""
    h = w // g
    own = math.ceil(c / block)
    return 4 * ((w - 1) * own + (g - 1) * math.ceil(h * c / block) + (h - 1) * own)


def leaving(c: int, w: int, g: int, block: int) -> int:
    """Bytes that leave a host, with their scales. Ranks are numbered host by host, so one edge of a ring leaves each
    host, and carries what any rank sends; of the all-to-all, all G ranks' slices do."""
    h, own = w // g, math.ceil(c / block)
    return (h > 1) * (forward(c, w) + 4 * (w - 1) * own + g * (across(c, h) + 4 * (h - 1) * own))


# The same as parts of M = 2Ψ bytes, without scales, for one micro-batch.


def leaves_a_host(w: int, g: int) -> float:
    """Forward and gradients: M/2 (W-1)/W, and G times M/4G (H-1)/H."""
    h = w // g
    return (w - 1) / w / 2 + (h - 1) / h / 4


def leaves_a_host_with_zero3(w: int) -> float:
    """Three rings."""
    return 3 * (w - 1) / w


def on_all_links(w: int, g: int) -> float:
    """What a rank sends, wherever to: 1.61 where ZeRO-3 sends 2.95, on 8 hosts of 8."""
    h = w // g
    return (w - 1) / w / 2 + (g - 1) / g + ((g - 1) / g + (h - 1) / (h * g)) / 4


# ---- what it prints --------------------------------------------------------------------------------------------------


def limit(part: str, printed: str, formula: str, value: float, unit: str = "M") -> Figure:
    """A row of table 1: between hosts, for any number of them."""
    return Figure("ZeRO++ table 1", part, printed, unit, formula, value, evidence=SECOND)


FORWARD = limit("forward all-gather", "0.5", "8 bits/16", 8 / 16)
BACKWARD = limit("backward all-gather", "0", "within the host", 0.0)
GRADIENTS = limit("backward reduce-scatter", "0.25", "4 bits/16", 4 / 16)
ZERO3 = limit("ZeRO-3, together", "3", "three rings", 3.0)
TOGETHER = limit("ZeRO++, together", "0.75", "1/2 + 0 + 1/4", 1 / 2 + 1 / 4)
LESS = Figure("ZeRO++, abstract", "less between hosts", "4", "times", "3/0.75", 3 / 0.75)
ONE_HOP = Figure(
    "VeOmni, pull request 1167", "all-to-all of all ranks, of 8 a host, more between hosts", "8", "times", "G", 8.0,
    evidence=SECOND,
)  # fmt: skip
FIGURES = [FORWARD, BACKWARD, GRADIENTS, ZERO3, TOGETHER, LESS, ONE_HOP]
