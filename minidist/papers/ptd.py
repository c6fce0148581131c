"""PTD, pipeline, tensor and data parallelism at once: Narayanan et al., SC 2021, arXiv 2104.04473.

p: stages; m: micro-batches; v: chunks of a stage; t: ranks that share a layer.
"""

from typing import NamedTuple

from minidist.papers.figure import Figure, decimals


def bubble(p: int, m: int, v: int = 1) -> float:
    """Idle time to the time of the work, not to all time: (p-1)/m, interleaved (1/v)(p-1)/m (section 2.2)."""
    return (p - 1) / (v * m)


def ideal_time(m: int, t_f: float, t_b: float) -> float:
    """What a stage works in a step: m(t_f + t_b) (section 2.2.1). Backwards include the weights' gradients."""
    return m * (t_f + t_b)


def in_flight(p: int, m: int, stage: int, v: int = 1) -> int:
    """The most (chunks of) micro-batches whose forward has run on a stage (1 to p), and whose backward has not ended.

    1F1B: at most p, on stage i min(p-i+1, m) (section 2.2.1). Interleaved, a worker does 2(p-i) + (v-1)p forwards
    before the first that a backward follows (Megatron-LM, schedules.py).
    """
    if v == 1:
        return min(p - stage + 1, m)
    return min(2 * (p - stage) + (v - 1) * p + 1, m * v)


def boundary_elements(b: int, s: int, h: int) -> int:
    """Elements that cross a boundary between stages for a micro-batch of b sequences of s, in each direction: bsh
    (section 3.2). Interleaved, there are v times as many boundaries."""
    return b * s * h


def crossings(p: int, m: int, stage: int, v: int = 1) -> tuple[int, int]:
    """Messages that stage i sends for m micro-batches: activations, one for each boundary behind its v chunks, and
    gradients, one for each before them (section 2.2). The model has none behind its last chunk and before its first;
    and a single stage sends itself none."""
    if p == 1:
        return 0, 0
    return m * (v - (stage == p)), m * (v - (stage == 1))


def parameters(layers: int, h: int, v: int = 51_200, s: int = 2048) -> int:
    """Equation 2: P = 12lh²(1 + 13/(12h) + (v+s)/(12lh)). It leaves out the last norm."""
    return 12 * layers * h**2 + 13 * layers * h + (v + s) * h


# ---- what it prints --------------------------------------------------------------------------------------------------


class Model(NamedTuple):
    """A row of table 1."""

    h: int
    layers: int
    t: int
    p: int
    gpus: int
    size: Figure


def _size(source: str, cell: str, printed: str, layers: int, h: int) -> Figure:
    """A model's parameters in billions."""
    return Figure(source, cell, printed, "B parameters", "equation 2", parameters(layers, h) / 1e9, decimals(1))


def _model(printed: str, h: int, layers: int, t: int, p: int, gpus: int) -> Model:
    """A row, its size computed."""
    return Model(h, layers, t, p, gpus, _size("PTD Table 1", f"h = {h}, {layers} layers", printed, layers, h))


TABLE_1 = [
    _model("1.7", 2304, 24, 1, 1, 32),
    _model("3.6", 3072, 30, 2, 1, 64),
    _model("7.5", 4096, 36, 4, 1, 128),
    _model("18.4", 6144, 40, 8, 1, 256),
    _model("39.1", 8192, 48, 8, 2, 512),
    _model("76.1", 10240, 60, 8, 4, 1024),
    _model("145.6", 12288, 80, 8, 8, 1536),
    _model("310.1", 16384, 96, 8, 16, 1920),
    _model("529.6", 20480, 105, 8, 35, 2520),
    _model("1008.0", 25600, 128, 8, 64, 3072),
]

FIGURES = [*(row.size for row in TABLE_1), _size("PTD Table 2", "GPT-3", "174.6", 96, 12288)]
