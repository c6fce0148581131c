"""PTD, pipeline, tensor and data parallelism at once: Narayanan et al., SC 2021, arXiv 2104.04473.

p: stages; m: micro-batches; v: chunks of a stage; t: ranks that share a layer.
"""

from typing import NamedTuple

from minidist.papers.figure import Figure, from_rounded


def bubble(p: int, m: int, v: int = 1) -> float:
    """Idle time relative to the time of the work, not to all time: (p-1)/m, interleaved (1/v)(p-1)/m (section 2.2)."""
    return (p - 1) / (v * m)


def ideal_time(m: int, t_f: float, t_b: float) -> float:
    """How long a stage works in a step: m(t_f + t_b) (section 2.2.1). Backwards include the weights' gradients."""
    return m * (t_f + t_b)


def in_flight(p: int, m: int, stage: int, v: int = 1, contiguous: int = 0) -> int:
    """The most (chunks of) micro-batches whose forward has run on a stage (1 to p), and whose backward has not ended.

    1F1B: at most p, on stage i min(p-i+1, m) (section 2.2.1). Interleaved, a worker does 2(p-i) + (v-1)p forwards
    before the first that a backward follows; with Llama 3's N micro-batches through a chunk before the next
    (`contiguous`), 2(p-i) + (v-1)N (Megatron-LM, schedules.py).
    """
    if v == 1:
        return min(p - stage + 1, m)
    return min(2 * (p - stage) + (v - 1) * (contiguous or p) + 1, m * v)


def boundary_elements(b: int, s: int, h: int) -> int:
    """Elements that cross a boundary between stages for a micro-batch of b sequences of s, in each direction: bsh
    (section 3.2). Interleaved, there are v times as many boundaries."""
    return b * s * h


def count_messages(p: int, m: int, stage: int, v: int = 1) -> tuple[int, int]:
    """Messages that stage i sends for m micro-batches: activations, one for each boundary after its v chunks, and
    gradients, one for each boundary before them (section 2.2). The model has no boundary after its last chunk or before
    its first, and a single stage sends itself nothing."""
    if p == 1:
        return 0, 0
    return m * (v - (stage == p)), m * (v - (stage == 1))


def parameters(layers: int, h: int, v: int = 51_200, s: int = 2048) -> int:
    """Equation 2: P = 12lh²(1 + 13/(12h) + (v+s)/(12lh)). It leaves out the last norm."""
    return 12 * layers * h**2 + 13 * layers * h + (v + s) * h


def flops(batch: int, layers: int, h: int, v: int = 51_200, s: int = 2048) -> float:
    """Equation 3, FLOPs of a step with full recomputation: F = 96Bslh²(1 + s/(6h) + V/(16lh))."""
    return 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))


def days(tokens: float, parameters: float, gpus: int, rate: float) -> float:
    """Equation 4: 8TP/(nX) seconds, of T tokens on n GPUs that each do `rate` operations a second, in days."""
    return 8 * tokens * parameters / (gpus * rate) / DAY


# ---- what it prints --------------------------------------------------------------------------------------------------


DAY = 24 * 60 * 60
A100 = 312e12  # operations a second at most, in float16


class Table1Model(NamedTuple):
    """A row of table 1."""

    h: int
    layers: int
    t: int
    p: int
    gpus: int
    heads: int
    batch: int  # B
    size: Figure
    rate: Figure
    share: Figure
    together: Figure


def _size(source: str, cell: str, printed: str, layers: int, h: int) -> Figure:
    """A model's parameters in billions."""
    return Figure(source, cell, printed, "B parameters", "equation 2", parameters(layers, h) / 1e9)


def _model(
    printed: str, h: int, layers: int, t: int, p: int, gpus: int, rate: str, share: str, together: str, heads: int,
    batch: int,
) -> Table1Model:  # fmt: skip
    """A row: its size, the teraFLOP/s of a GPU, and from these the share of its peak, and the rate of all GPUs."""
    cell = f"h = {h}, {layers} layers"
    percent = from_rounded(lambda rate: rate * 1e12 / A100 * 100, rate)
    of_peak = Figure("PTD Table 1", f"{cell}, of peak", share, "%", "X / 312 teraFLOP/s", *percent)
    petaflops = from_rounded(lambda rate: rate * gpus / 1000, rate)
    of_all = Figure("PTD Table 1", f"{cell}, together", together, "petaFLOP/s", "nX", *petaflops)
    measured = Figure("PTD Table 1", f"{cell}, a GPU", rate, "teraFLOP/s", "measured: A100")
    size = _size("PTD Table 1", cell, printed, layers, h)
    return Table1Model(h, layers, t, p, gpus, heads, batch, size, measured, of_peak, of_all)


TABLE_1 = [
    _model("1.7", 2304, 24, 1, 1, 32, "137", "44", "4.4", 24, 512),
    _model("3.6", 3072, 30, 2, 1, 64, "138", "44", "8.8", 32, 512),
    _model("7.5", 4096, 36, 4, 1, 128, "142", "46", "18.2", 32, 512),
    _model("18.4", 6144, 40, 8, 1, 256, "135", "43", "34.6", 48, 1024),
    _model("39.1", 8192, 48, 8, 2, 512, "138", "44", "70.8", 64, 1536),
    _model("76.1", 10240, 60, 8, 4, 1024, "140", "45", "143.8", 80, 1792),
    _model("145.6", 12288, 80, 8, 8, 1536, "148", "47", "227.1", 96, 2304),
    _model("310.1", 16384, 96, 8, 16, 1920, "155", "50", "297.4", 128, 2160),
    _model("529.6", 20480, 105, 8, 35, 2520, "163", "52", "410.2", 128, 2520),
    _model("1008.0", 25600, 128, 8, 64, 3072, "163", "52", "502.0", 160, 3072),
]


class Table2Run(NamedTuple):
    """A row of table 2, its model by layers and width; rows: sequences of a GPU's micro-batch."""

    scheme: str
    layers: int
    h: int
    gpus: int
    rows: int
    rate: Figure
    days: Figure


def _run(scheme: str, model: str, gpus: int, rows: int, rate: str, printed: str) -> Table2Run:
    """Days for 300 billion tokens. They come from equation 3, not from equation 4, which would give 87.7 for 90."""
    layers, h = {"174.6B": (96, 12_288), "529.6B": (105, 20_480)}[model]
    work = 300e9 / 2048 * flops(1, layers, h)
    cell, time = f"{scheme}, {model}, {gpus} GPUs", from_rounded(lambda rate: work / (gpus * rate * 1e12) / DAY, rate)
    days = Figure("PTD Table 2", cell, printed, "days", "equation 3 / nX", *time)
    measured = Figure("PTD Table 2", f"{cell}, a GPU", rate, "teraFLOP/s", "measured: A100")
    return Table2Run(scheme, layers, h, gpus, rows, measured, days)


TABLE_2_RUNS = [
    _run("ZeRO-3", "174.6B", 384, 4, "144", "90"),
    _run("ZeRO-3", "174.6B", 768, 2, "88", "74"),
    _run("ZeRO-3", "174.6B", 1536, 1, "44", "74"),
    _run("ZeRO-3", "529.6B", 640, 4, "138", "169"),
    _run("ZeRO-3", "529.6B", 1120, 2, "98", "137"),
    _run("ZeRO-3", "529.6B", 2240, 1, "48", "140"),
    _run("PTD", "174.6B", 384, 1, "153", "84"),
    _run("PTD", "174.6B", 768, 1, "149", "43"),
    _run("PTD", "174.6B", 1536, 1, "141", "23"),
    _run("PTD", "529.6B", 560, 1, "171", "156"),
    _run("PTD", "529.6B", 1120, 1, "167", "80"),
    _run("PTD", "529.6B", 2240, 1, "159", "42"),
]
TABLE_2 = [run.days for run in TABLE_2_RUNS]


def _training(model: str, printed: str, tokens: float, parameters: float, gpus: int, rate: str) -> Figure:
    """Days by equation 4."""
    time = from_rounded(lambda rate: days(tokens, parameters, gpus, rate * 1e12), rate)
    return Figure("PTD §5.1", model, printed, "days", "8TP/(nX)", *time)


GPT_3 = _size("PTD Table 2", "GPT-3", "174.6", 96, 12288)

TENSOR = Figure("PTD §3.2", "tensor parallelism, a layer", "8", "bsh", "sent·t/(t-1)")

FIGURES = [
    TENSOR,
    *(figure for row in TABLE_1 for figure in (row.size, row.rate, row.share, row.together)),
    GPT_3,
    *(figure for run in TABLE_2_RUNS for figure in (run.rate, run.days)),
    _training("GPT-3", "34", 300e9, 175e9, 1024, "140"),
    _training("1 trillion", "84", 450e9, 1.008e12, 3072, "163"),
]
