"""ZeRO-Infinity: Rajbhandari et al., SC 2021, arXiv 2104.07857. Volumes in elements, sizes in bytes.

nl: layers; hd: width; bsz: sequences on a GPU; seq: their length; ci: blocks to an activation checkpoint.
"""

import math

from minidist.papers.figure import SECOND, Figure

# ---- memory (section 3) ----------------------------------------------------------------------------------------------

STATES = 2 + 2 + 16  # bytes per parameter: fp16 parameters and gradients; in fp32 both again, momentum and variance


def parameters(nl: int, hd: int) -> int:
    """Parameters of the blocks' matrices."""
    return 12 * nl * hd**2


def model_states(nl: int, hd: int) -> int:
    """Bytes of model states: 240·nl·hd²."""
    return STATES * parameters(nl, hd)


def checkpoints(nl: int, hd: int, bsz: int, seq: int, ci: int = 1) -> float:
    """Bytes of activation checkpoints."""
    return 2 * bsz * seq * hd * nl / ci


def working_memory(hd: int, tiles: int = 1) -> float:
    """Bytes of the largest layer (hd to 4hd) and of its gradients, one tile at a time."""
    return 16 * hd**2 / tiles


def largest_width(capacity: float, tiles: int = 1) -> float:
    """The hidden size for which the working memory fills a capacity."""
    return math.sqrt(capacity * tiles / 16)


# ---- bandwidth (section 4) -------------------------------------------------------------------------------------------


def efficiency(ait: float, bandwidth: float, peak: float) -> float:
    """The share of a step in which a GPU computes, if it waits for the data that is moved. ait: the
    arithmetic intensity, FLOP per byte; bandwidth: bytes per second; peak: FLOP per second."""
    return ait * bandwidth / (ait * bandwidth + peak)


def bandwidth_for(share: float, ait: float, peak: float) -> float:
    """Bytes per second that give such an efficiency."""
    return share / (1 - share) * peak / ait


def computation(params: float, bsz: float, seq: int) -> float:
    """FLOP of a step: per parameter and token 2 in the forward, 4 in the backward, 2 to recompute."""
    return 2 * 4 * bsz * seq * params


# Arithmetic intensity: these 8·bsz·seq FLOP per parameter, divided by the bytes that are moved for it:
MOVED_FOR_PASSES = 2 * 4  # fp16 parameters for the forward, for recomputation, for the backward; and the gradient
MOVED_FOR_UPDATE = 2 * 16  # states are read and written


def ait_of_passes(bsz: float, seq: int) -> float:
    """FLOP per byte of parameters and gradients: seq·bsz."""
    return computation(1, bsz, seq) / MOVED_FOR_PASSES


def ait_of_update(bsz: float, seq: int) -> float:
    """FLOP per byte of optimizer states: seq·bsz/4."""
    return computation(1, bsz, seq) / MOVED_FOR_UPDATE


def ait_of_checkpoints(hd: int, ci: int = 1) -> float:
    """FLOP per byte of activation checkpoints, which are written and read: 24·hd·ci."""
    bsz, seq, nl = 1, 1, 1  # the result does not depend on these
    return computation(parameters(nl, hd), bsz, seq) / (2 * checkpoints(nl, hd, bsz, seq, ci))


def elements_moved(psi: float, n: int, stage: int = 3, accumulate: int = 1, again: float = 0) -> dict[str, float]:
    """Elements that each of n ranks moves in a step (section 4.1). again: elements of units that are recomputed apart
    from their backward, and are read once more; in the paper all units are.

    Stage 3 reads each shard for a forward and for a backward, and writes it once. Below it, parameters are on the
    devices, and go up once updated.
    """
    shard, divided = psi / n, stage == 3
    return {
        "parameters read": accumulate * (2 * psi + again) / n * divided,
        "parameters written": shard * divided,
        "parameters up": shard,
        "gradients": shard * (accumulate if stage >= 2 else 1),
        "states": shard,
    }


def fetch(n: int) -> float:
    """Time to read a unit from n disks, where one disk takes 1 (section 6.1)."""
    return 1 / n


# ---- what it prints --------------------------------------------------------------------------------------------------

PEAK, SEQ = 70e12, 1024  # FLOP/s that a model reaches on a GPU; tokens in a sequence of the examples


def _share(what: str, bandwidth: float, printed: str, ait: float) -> Figure:
    """An efficiency that is printed as more than some percentage."""
    share = 100 * efficiency(ait, bandwidth, PEAK)
    tens = lambda value: str(int(value // 10 * 10))  # noqa: E731  (as it rounds: down, to tens)
    formula = "ait·bw / (ait·bw + 70 TFLOP/s)"
    return Figure(
        "ZeRO-Infinity §4.2", f"{what}: efficiency", printed, "%", formula, share, evidence=SECOND, rounded=tens
    )


NEEDS = [
    _share("parameters and gradients, 70 GB/s, bsz 1", 70e9, "50", ait_of_passes(1, SEQ)),
    _share("optimizer states, 1.5 TB/s, bsz 2", 1.5e12, "90", ait_of_update(2, SEQ)),
    _share("activation checkpoints, 2 GB/s, hd 2K", 2e9, "50", ait_of_checkpoints(2048)),
    _share("activation checkpoints, 3 GB/s, hd 8K", 3e9, "80", ait_of_checkpoints(8192)),
]


def _widest(tiles: int, printed: str, differs: str = "") -> Figure:
    """The largest hidden size, in K, if the weights, half of what is needed, must lie in one piece of 2 GB."""
    largest = largest_width(2 * 2**31, tiles) / 1024
    what = f"largest hidden size, {tiles} tiles" if tiles > 1 else "largest hidden size, without tiles"
    return Figure("ZeRO-Infinity §8", what, printed, "K", "√(2 GB·t / 8)", largest, evidence=SECOND, differs=differs)


TILING = [
    _widest(1, "8", "16K would have weights of 2 GB, as a 16th of 64K has: √16 is 4 times, and 8K to 64K is 8"),
    _widest(16, "64"),
]

FIGURES = [*NEEDS, *TILING]
