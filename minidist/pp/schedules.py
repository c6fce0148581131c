"""Pipeline schedules: what each worker does, in which order. Pure data: nothing is computed or sent here.

The model is cut into stages, one per worker, and a batch into micro-batches. A schedule is a generator that yields the
instructions of one worker; it only needs the worker's `Place`. The backward is split in two, because zero-bubble
schedules need that (Qi et al. 2023, section 2). B computes the gradient of a stage's input, and the stage before waits
for it. W computes the gradient of its weights; no stage waits for W. Other schedules run W right after B, and then
send.

Micro-batches count from 0 here, and from 1 in the papers' formulas.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

# ---- instructions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forward:
    """F: run a chunk of the model on a micro-batch, with the weights that `version` updates of the stream made."""

    micro_batch: int
    chunk: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Backward:
    """B: the gradient of the chunk's input, with the weights that the micro-batch's forward used."""

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Weight:
    """W: add the gradient of the chunk's weights to the step's, unless the schedule leaves that to B. After it, nothing
    of the micro-batch is kept."""

    micro_batch: int
    chunk: int = 0


ACTIVATION, GRADIENT = "activations", "gradients"  # what messages carry: downstream, and upstream


@dataclass(frozen=True, slots=True)
class Send:
    """Send the chunk's output downstream, or the gradient of its input upstream, without waiting for the receiver."""

    what: str
    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the chunk's input from upstream, or for the gradient of its output from downstream."""

    what: str
    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Update the weights with the gradients that W has added up. From now on no versions before `oldest` are needed."""

    oldest: int = 1  # the version that the first step makes: the weights before it may go


Instruction = Forward | Backward | Weight | Send | Receive | Step
Instructions = Iterator[Instruction]


def name_of(instruction: Instruction) -> str:
    """As the papers draw it: F3 is micro-batch 3's forward; of a second chunk, f3."""
    match instruction:
        case Step():
            return "update"
        case Send(what, k, _) | Receive(what, k, _):
            return f"{type(instruction).__name__.lower()} {what} {k + 1}"
        case _:
            letter = type(instruction).__name__[0]
            return f"{letter.lower() if instruction.chunk else letter}{instruction.micro_batch + 1}"


# ---- where a worker stands -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A worker's place in the pipeline. The chunks of all workers in a row are the model: chunk c of stage s is the
    (c·p + s)-th of v·p."""

    stage: int
    stages: int  # p; K, n or d in some papers
    micro_batches: int  # m, per update
    chunks: int = 1  # v
    updates: int = 1  # the number in a stream without a flush; with a flush, a stream is one update long
    replicas: tuple[int, ...] = ()  # workers of each stage; one of each if not given
    replica: int = 0  # micro-batch k is for replica k mod r of a stage that has r (PipeDream's 1F1B-RR)

    def position(self, chunk: int) -> int:
        """The part of the model that the chunk is."""
        return chunk * self.stages + self.stage

    def is_first(self, chunk: int) -> bool:
        return self.position(chunk) == 0

    def is_last(self, chunk: int) -> bool:
        return self.position(chunk) == self.chunks * self.stages - 1

    def workers(self, stage: int) -> int:
        return self.replicas[stage] if self.replicas else 1

    def boundary(self, message: Send | Receive) -> int:
        """Between which parts of the model a message goes: boundary b is that of parts b and b + 1."""
        outgoing = isinstance(message, Send) == (message.what == ACTIVATION)
        return self.position(message.chunk) - (0 if outgoing else 1)

    def name(self, message: Send | Receive) -> tuple[str, int, int]:
        """What a message is called at both of its ends."""
        return message.what, message.micro_batch, self.boundary(message)

    def peer(self, message: Send | Receive) -> int:
        """The rank at the other end. Ranks count through the replicas of the first stage, then of the second, …"""
        here, boundary = self.position(message.chunk), self.boundary(message)
        stage = (boundary + 1 if here == boundary else boundary) % self.stages
        return sum(map(self.workers, range(stage))) + message.micro_batch % self.workers(stage)

    def ahead(self, stage: int) -> int:
        """1F1B without flush: micro-batches that a worker of a stage takes in before its first backward. Enough to keep
        all workers downstream busy; PipeDream (section 3.2) calls it NOAM at the input stage."""
        downstream = sum(map(self.workers, range(stage, self.stages)))
        return -(-downstream // self.workers(stage))

    def newest(self, stage: int, k: int) -> int:
        """1F1B without flush: updates that a stage has made when it begins the forward of micro-batch k."""
        done = max(k // self.workers(stage) - self.ahead(stage) + 1, 0)  # backwards done by the worker that takes k
        return done * self.workers(stage) // self.micro_batches


def places(
    stages: int, micro_batches: int, chunks: int = 1, updates: int = 1, replicas: tuple[int, ...] = ()
) -> list[Place]:
    """Every worker's place, in order of rank."""
    workers = replicas or (1,) * stages
    return [
        Place(stage, stages, micro_batches, chunks, updates, replicas, replica)
        for stage in range(stages)
        for replica in range(workers[stage])
    ]


def forward(at: Place, k: int, chunk: int = 0, version: int = 0) -> Instructions:
    if not at.is_first(chunk):
        yield Receive(ACTIVATION, k, chunk)
    yield Forward(k, chunk, version)
    if not at.is_last(chunk):
        yield Send(ACTIVATION, k, chunk)


def backward(at: Place, k: int, chunk: int = 0, weight: bool = True) -> Instructions:
    """B, and, with `weight`, also W before the gradient goes upstream."""
    if not at.is_last(chunk):
        yield Receive(GRADIENT, k, chunk)
    yield Backward(k, chunk)
    if weight:
        yield Weight(k, chunk)
    if not at.is_first(chunk):
        yield Send(GRADIENT, k, chunk)


# ---- with a flush: every micro-batch of a step sees the same weights -------------------------------------------------


def naive(at: Place) -> Instructions:
    """Model parallelism without a pipeline: one micro-batch at a time, one worker at a time."""
    for k in range(at.micro_batches):
        yield from forward(at, k)
        yield from backward(at, k)
    yield Step()


def gpipe(at: Place) -> Instructions:
    """All forwards, then all backwards, the last micro-batch's first (Huang et al. 2019, figure 2c)."""
    for k in range(at.micro_batches):
        yield from forward(at, k)
    for k in reversed(range(at.micro_batches)):
        yield from backward(at, k)
    yield Step()


def one_f_one_b(at: Place) -> Instructions:
    """1F1B: a backward runs as soon as it can, and makes room for one more forward (2BW 2.2; PTD 2.2.1)."""
    ahead = at.stages - at.stage  # forwards before the first backward
    for k in range(at.micro_batches + ahead):
        if k >= ahead:
            yield from backward(at, k - ahead)
        if k < at.micro_batches:
            yield from forward(at, k)
    yield Step()


def interleaved(at: Place) -> Instructions:
    """1F1B over v chunks to a worker, so that the pipeline fills v times as fast (PTD 2.2.2).

    Micro-batches go in groups of p: a group through chunk 0, then through chunk 1, …; m must be a multiple of p.
    """
    p, v = at.stages, at.chunks
    order = [
        (k, chunk) for group in range(0, at.micro_batches, p) for chunk in range(v) for k in range(group, group + p)
    ]
    ahead = 2 * (p - at.stage - 1) + (v - 1) * p + 1 if v > 1 else p - at.stage
    for i in range(len(order) + ahead):
        if i >= ahead:
            k, chunk = order[i - ahead]
            yield from backward(at, k, v - 1 - chunk)
        if i < len(order):
            yield from forward(at, *order[i])
    yield Step()


def zb_h1(at: Place) -> Instructions:
    """1F1B's memory; W fills a part of its bubble (Qi et al. 2023, 3.1)."""
    return _zero_bubble(at, ahead=at.stages - at.stage, late=at.stage)


def zb_h2(at: Place) -> Instructions:
    """More forwards at the beginning, and W fills all of the bubble if F, B and W take the same time (3.2)."""
    return _zero_bubble(at, ahead=2 * (at.stages - at.stage) - 1, late=2 * at.stage)


def _zero_bubble(at: Place, ahead: int, late: int) -> Instructions:
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


def pipedream(at: Place) -> Instructions:
    """Weight stashing: a forward takes the newest weights that its stage has, and its backward the same (PDS 3.3)."""
    return _without_flush(at, lambda k: at.newest(at.stage, k))


def vertical_sync(at: Place) -> Instructions:
    """PipeDream with vertical sync: on all stages the weights that the input stage took (PDS 3.3)."""
    return _without_flush(at, lambda k: at.newest(0, k))


def two_bw(at: Place) -> Instructions:
    """PipeDream-2BW: a version for m micro-batches; those of one update use what the last but one made (2BW 3.1)."""
    return _without_flush(at, lambda k: max(k // at.micro_batches - 1, 0))


def _without_flush(at: Place, version: Callable[[int], int]) -> Instructions:
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
    instructions: Callable[[Place], Instructions]
    flushes: bool = True
    splits: bool = False  # whether W comes later than B


SCHEDULES = {
    "naive": Schedule("model parallelism without a pipeline", naive),
    "gpipe": Schedule("Huang et al., GPipe, 2019", gpipe),
    "1f1b": Schedule("Narayanan et al., PipeDream-Flush, 2021", one_f_one_b),
    "interleaved": Schedule("Narayanan et al., Megatron-LM, SC 2021", interleaved),
    "zb-h1": Schedule("Qi et al., Zero Bubble, 2023", zb_h1, splits=True),
    "zb-h2": Schedule("Qi et al., Zero Bubble, 2023", zb_h2, splits=True),
    "pipedream": Schedule("Narayanan et al., PipeDream, 2019: weight stashing", pipedream, flushes=False),
    "vertical-sync": Schedule("Narayanan et al., PipeDream, 2019: vertical sync", vertical_sync, flushes=False),
    "2bw": Schedule("Narayanan et al., PipeDream-2BW, 2021", two_bw, flushes=False),
}
