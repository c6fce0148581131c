"""Pipeline schedules: what each worker does, in which order. Pure data: nothing is computed or sent here.

The model is cut into stages, one per worker, and a batch into micro-batches. A schedule is a generator that yields the
instructions of one worker; it only needs the worker's `Place`. The backward is split in two, because zero-bubble
schedules need that (Qi et al. 2023, section 2). B computes the gradient of a stage's input, and the stage before waits
for it. W computes the gradient of its weights; no stage waits for W. Other schedules run W right after B, and then
send.

Micro-batches count from 0; in the papers' formulas, from 1. `minidist/pp/folded.py` has the schedules whose
pipeline is folded or crossed; the table of all schedules is at the end of this file.
"""

from collections.abc import Callable
from dataclasses import dataclass

from minidist.pp.folded import chimera, dualpipe, dualpipe_v, v_half, v_min, zb_v
from minidist.pp.instructions import Instructions, StagePlace, Step, Weight, backward, forward

# ---- with a flush: every micro-batch of a step sees the same weights -------------------------------------------------


def naive(at: StagePlace) -> Instructions:
    """Model parallelism without a pipeline: one micro-batch at a time, one worker at a time."""
    for k in range(at.micro_batches):
        yield from forward(at, k)
        yield from backward(at, k)
    yield Step()


def gpipe(at: StagePlace) -> Instructions:
    """All forwards, then all backwards, the last micro-batch's first (Huang et al. 2019, figure 2c)."""
    for k in range(at.micro_batches):
        yield from forward(at, k)
    for k in reversed(range(at.micro_batches)):
        yield from backward(at, k)
    yield Step()


def one_f_one_b(at: StagePlace) -> Instructions:
    """1F1B: a backward runs as soon as it can, and makes room for one more forward (2BW 2.2; PTD 2.2.1)."""
    ahead = at.stages - at.stage  # forwards before the first backward
    for k in range(at.micro_batches + ahead):
        if k >= ahead:
            yield from backward(at, k - ahead)
        if k < at.micro_batches:
            yield from forward(at, k)
    yield Step()


def interleaved(at: StagePlace) -> Instructions:
    """1F1B over v chunks to a worker, so that the pipeline fills v times as fast (PTD 2.2.2).

    Micro-batches go in groups of p: a group through chunk 0, then through chunk 1, …; m must be a multiple of p.
    """
    return _in_groups(at, at.stages)


def llama3(at: StagePlace) -> Instructions:
    """`interleaved` with groups of any size N from p (depth first) to m (breadth first). A rest at the end is a group
    of its own, of p or more (Llama 3, 3.3.2; Megatron-LM's `microbatch_group_size_per_vp_stage`)."""
    return _in_groups(at, at.contiguous or at.stages)


def _in_groups(at: StagePlace, size: int) -> Instructions:
    p, v = at.stages, at.chunks
    order = in_groups(at.micro_batches, v, size)
    ahead = 2 * (p - at.stage - 1) + (v - 1) * min(size, at.micro_batches) + 1 if v > 1 else p - at.stage
    for i in range(len(order) + ahead):
        if i >= ahead:
            k, chunk = order[i - ahead]
            yield from backward(at, k, v - 1 - chunk)
        if i < len(order):
            yield from forward(at, *order[i])
    yield Step()


def in_groups(m: int, v: int, size: int) -> list[tuple[int, int]]:
    """Micro-batches and chunks in the order of their forwards: a group through chunk 0, then through chunk 1, …"""
    groups = [range(first, min(first + size, m)) for first in range(0, m, size)]
    return [(k, chunk) for group in groups for chunk in range(v) for k in group]


def breadth_first(at: StagePlace) -> Instructions:
    """GPipe over v chunks to a worker: all micro-batches through a chunk, then all through the next, and back in the
    same way. With ZeRO-3 a chunk's parameters can be gathered once for all (Lamy-Poirier 2023, arXiv
    2211.05953)."""
    for chunk in range(at.chunks):
        for k in range(at.micro_batches):
            yield from forward(at, k, chunk)
    for chunk in reversed(range(at.chunks)):
        for k in range(at.micro_batches):
            yield from backward(at, k, chunk)
    yield Step()


def zb_h1(at: StagePlace) -> Instructions:
    """1F1B's memory; W fills a part of its bubble (Qi et al. 2023, 3.1)."""
    return _zero_bubble(at, ahead=at.stages - at.stage, late=at.stage)


def zb_h2(at: StagePlace) -> Instructions:
    """More forwards at the beginning, and W fills all of the bubble if F, B and W take the same time (3.2)."""
    return _zero_bubble(at, ahead=2 * (at.stages - at.stage) - 1, late=2 * at.stage)


def _zero_bubble(at: StagePlace, ahead: int, late: int) -> Instructions:
    """1F1B with `ahead` forwards before the first B, and each W `late` backwards after its B."""
    m = at.micro_batches
    for k in range(m + ahead):
        if k >= ahead:
            yield from backward(at, k - ahead, weight=False)
            if k - ahead >= late:
                yield Weight(k - ahead - late)
        if k < m:
            yield from forward(at, k)
    for k in range(max(m - late, 0), m):
        yield Weight(k)
    yield Step()


# ---- without a flush: the pipeline never drains, and weights change under way ----------------------------------------


def pipedream(at: StagePlace) -> Instructions:
    """Weight stashing: a forward takes the newest weights that its stage has, and its backward the same (PDS 3.3)."""
    return _without_flush(at, lambda k: at.newest(at.stage, k))


def vertical_sync(at: StagePlace) -> Instructions:
    """PipeDream with vertical sync: all stages use the weights that the input stage took (PDS 3.3)."""
    return _without_flush(at, lambda k: at.newest(0, k))


def two_bw(at: StagePlace) -> Instructions:
    """PipeDream-2BW: a version for each m micro-batches, which use what the last update but one made (2BW 3.1)."""
    return _without_flush(at, lambda k: max(k // at.micro_batches - 1, 0))


def _without_flush(at: StagePlace, version: Callable[[int], int]) -> Instructions:
    """1F1B over all updates; micro-batch k uses `version(k)`, which never falls. Replicas take turns (1F1B-RR)."""
    workers, ahead = at.workers(at.stage), at.ahead(at.stage)
    mine = range(at.replica, at.micro_batches * at.updates, workers)
    for i in range(len(mine) + ahead):
        if i >= ahead:
            k = mine[i - ahead]
            yield from backward(at, k)
            if k // at.micro_batches != (k + workers) // at.micro_batches:  # its update's last one on this worker
                yield Step(oldest=version(k + workers))
        if i < len(mine):
            yield from forward(at, mine[i], version=version(mine[i]))


# ---- all of them -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """A schedule, and what its user needs to know."""

    paper: str
    instructions: Callable[[StagePlace], Instructions]
    flushes: bool = True
    splits: bool = False  # whether W comes later than B
    shape: str = "loop"  # of its places
    chunks: int = 1  # of a stage; if 2 or more in a loop, the user may take another number
    # What p and m must be: p and m multiples of something, and m at least something.
    stages_in: int = 1
    micro_batches_in: Callable[[int], int] = lambda p: 1
    at_least: Callable[[int], int] = lambda p: 1

    @property
    def any_chunks(self) -> bool:
        return self.chunks > 1 and self.shape == "loop"

    def places(
        self,
        stages: int,
        micro_batches: int,
        chunks: int = 0,
        updates: int = 1,
        replicas: tuple[int, ...] = (),
        contiguous: int = 0,
    ) -> list[StagePlace]:
        """Every worker's place, in order of rank. chunks: by default the usual number."""
        rows = 2 if self.shape == "cross" else chunks or self.chunks
        workers = replicas or (1,) * stages
        return [
            StagePlace(stage, stages, micro_batches, rows, updates, replicas, replica, self.shape, contiguous)
            for stage in range(stages)
            for replica in range(workers[stage])
        ]


SCHEDULES = {
    "naive": Schedule("model parallelism without a pipeline", naive),
    "gpipe": Schedule("Huang et al., GPipe, 2019", gpipe),
    "1f1b": Schedule("Narayanan et al., PipeDream-Flush, 2021", one_f_one_b),
    "interleaved": Schedule(
        "Narayanan et al., Megatron-LM, SC 2021", interleaved, chunks=2, micro_batches_in=lambda p: p
    ),
    "breadth-first": Schedule("Lamy-Poirier, Breadth-First, 2023", breadth_first, chunks=2),
    "llama3": Schedule("Grattafiori et al., Llama 3, 2024", llama3, chunks=2, at_least=lambda p: p),
    "zb-h1": Schedule("Qi et al., Zero Bubble, 2023", zb_h1, splits=True),
    "zb-h2": Schedule("Qi et al., Zero Bubble, 2023", zb_h2, splits=True),
    "zb-v": Schedule("Qi et al., Controllable Memory, 2024", zb_v, splits=True, shape="v", chunks=2),
    "v-half": Schedule("Qi et al., Controllable Memory, 2024", v_half, splits=True, shape="v", chunks=2),
    "v-min": Schedule("Qi et al., Controllable Memory, 2024", v_min, splits=True, shape="v", chunks=2),
    "chimera": Schedule(
        "Li and Hoefler, Chimera, SC 2021", chimera, shape="cross", stages_in=2, micro_batches_in=lambda p: p
    ),
    "dualpipe": Schedule(
        "DeepSeek-V3, 2024",
        dualpipe,
        splits=True,
        shape="cross",
        stages_in=2,
        micro_batches_in=lambda p: 2,
        at_least=lambda p: 2 * p,
    ),
    "dualpipe-v": Schedule(
        "DeepSeek-AI, DualPipeV, 2025", dualpipe_v, splits=True, shape="v", chunks=2, at_least=lambda p: 2 * p
    ),
    "pipedream": Schedule("Narayanan et al., PipeDream, 2019: weight stashing", pipedream, flushes=False),
    "vertical-sync": Schedule("Narayanan et al., PipeDream, 2019: vertical sync", vertical_sync, flushes=False),
    "2bw": Schedule("Narayanan et al., PipeDream-2BW, 2021", two_bw, flushes=False, at_least=lambda p: p),
}


def drained(schedule: str, save_every: int | None) -> bool:
    """Whether a stream without a flush is interrupted to be saved. The papers' claims are about uninterrupted ones."""
    return bool(save_every and not SCHEDULES[schedule].flushes)
