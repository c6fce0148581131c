"""PTD, pipeline, tensor and data parallelism at once: Narayanan et al., SC 2021, arXiv 2104.04473.

p: stages; m: micro-batches; v: chunks of a stage; t: ranks that share a layer.
"""


def bubble(p: int, m: int, v: int = 1) -> float:
    """Idle time to the time of the work, not to all time: (p-1)/m, interleaved (1/v)(p-1)/m (section 2.2)."""
    return (p - 1) / (v * m)


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


def parameters(layers: int, h: int, v: int = 51_200, s: int = 2048) -> int:
    """Equation 2: P = 12lh²(1 + 13/(12h) + (v+s)/(12lh)). It leaves out the last norm."""
    return 12 * layers * h**2 + 13 * layers * h + (v + s) * h


# Table 1: {billions of parameters as printed: (width, layers, tensor-parallel ranks t, stages p, GPUs)}.
TABLE_1 = {
    "1.7": (2304, 24, 1, 1, 32),
    "3.6": (3072, 30, 2, 1, 64),
    "7.5": (4096, 36, 4, 1, 128),
    "18.4": (6144, 40, 8, 1, 256),
    "39.1": (8192, 48, 8, 2, 512),
    "76.1": (10240, 60, 8, 4, 1024),
    "145.6": (12288, 80, 8, 8, 1536),
    "310.1": (16384, 96, 8, 16, 1920),
    "529.6": (20480, 105, 8, 35, 2520),
    "1008.0": (25600, 128, 8, 64, 3072),
}
