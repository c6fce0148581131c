"""GPipe: Huang et al., NeurIPS 2019, arXiv 1811.06965. K stages and M micro-batches, here p and m."""

from minidist.papers.figure import Figure, from_rounded


def bubble(p: int, m: int) -> float:
    """The share of the time in which a worker idles: (K-1)/(M+K-1) (section 2.3, where it is an O()).

    "Negligible when M >= 4K" was found in experiments: the formula gives 15.8 % for K = 4, M = 16.
    """
    return (p - 1) / (m + p - 1)


def parameters(layers: int, v: int = 32_000, h: int = 2048, f: int = 8192) -> int:
    """Parameters of table 1's Transformer: embedding and softmax apart, attention and MLP with biases, two norms."""
    return 2 * v * h + layers * (4 * h * h + 4 * h + 2 * h * f + f + h + 4 * h)


BYTES = 12  # per parameter: itself, its gradient and what RMSProp keeps (section 3)


# ---- what it prints --------------------------------------------------------------------------------------------------


def _row(layers: int, millions: str, billions: str, memory: str, differs: str = "") -> list[Figure]:
    """A column of table 1: the Transformer's parameters, and their memory in GB of 2^30 bytes."""
    printed, unit, scale = (billions, "B", 1e9) if billions else (millions, "M", 1e6)
    name = f"Transformer-{layers}"
    formula = "2Vh + L(4h² + 4h + 2hf + f + h + 4h)"
    size = Figure(
        "GPipe Table 1", name, printed, f"{unit} parameters", formula, parameters(layers) / scale, differs=differs
    )
    gigabytes = from_rounded(lambda size: BYTES * size * scale / 2**30, printed)
    return [size, Figure("GPipe Table 1", f"{name}, its memory", memory, "GB", "12 bytes each", *gigabytes)]


TABLE_1 = [  # size and memory
    # The row's memory is printed as 11.7, and this as the peak of activations: the two have changed places.
    _row(3, "282.2", "", "3.15", differs="282.1: its sizes give 282,146,816"),
    _row(13, "785.8", "", "8.8", differs="785.7: its sizes give 785,729,536"),
    _row(103, "", "5.3", "59.5"),
    _row(415, "", "21.0", "235.1"),
    _row(1663, "", "83.9", "937.9"),
]
SIZES = dict(zip((3, 13, 103, 415, 1663), (size for size, _ in TABLE_1), strict=True))  # by layers
FIGURES = [figure for row in TABLE_1 for figure in row]
