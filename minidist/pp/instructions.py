"""The instructions of a schedule, and where in the pipeline the worker stands that follows them.

F, B, W: forward, the gradient of the input, the gradient of the weights. Stages, micro-batches and chunks count from 0,
as ranks do; in the papers' formulas stages and micro-batches count from 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True, slots=True)
class Both:
    """A forward of one micro-batch that overlaps with the backward, W included, of another (DualPipe)."""

    forward: Forward
    backward: Backward

    @property
    def micro_batch(self) -> int:
        """The later one of the two."""
        return max(self.forward.micro_batch, self.backward.micro_batch)


Instruction = Forward | Backward | Weight | Both | Send | Receive | Step
Instructions = Iterator[Instruction]


def name_of(instruction: Instruction) -> str:
    """An instruction as it is drawn: F3 is micro-batch 3's forward."""
    match instruction:
        case Step():
            return "update"
        case Both(ahead, back):
            return f"{name_of(ahead)}&{name_of(back)}"
        case Send(what, k, _) | Receive(what, k, _):
            return f"{type(instruction).__name__.lower()} {what} {k}"
        case _:
            return name_of_work(type(instruction).__name__[0], instruction.micro_batch, instruction.chunk)


def name_of_work(letter: str, micro_batch: int, chunk: int) -> str:
    """Letter and micro-batch. Chunk 1 has a small letter; from chunk 2 on, the chunk's number follows: f3.2."""
    return f"{letter.lower() if chunk else letter}{micro_batch}" + (f".{chunk}" if chunk > 1 else "")


# ---- where a worker stands -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StagePlace:
    """A worker's place in the pipeline. One chunk of each worker makes a row, and the rows make the model. The shape
    says how:

    loop     each row runs from the first stage to the last: chunk c of stage s is part c·p + s of the model's v·p
    v        every second row runs back: the model turns around on the last stage, and ends on the stage where it began
    cross    each row is a whole model, and the second one runs back: a worker has one stage of each model. Chunk 0
             has the micro-batches with even numbers, chunk 1 those with odd numbers
    """

    stage: int
    stages: int  # p; K, n, d, D or PP in some papers
    micro_batches: int  # m, per update
    chunks: int = 1  # v
    updates: int = 1  # the number in a stream without a flush; with a flush, a stream is one update long
    replicas: tuple[int, ...] = ()  # workers of each stage; one of each if not given
    replica: int = 0  # micro-batch k is for replica k mod r of a stage that has r (PipeDream's 1F1B-RR)
    shape: str = "loop"
    contiguous: int = 0  # micro-batches that go through a chunk before the next chunk's turn (Llama 3's N); 0: p

    @property
    def parts(self) -> int:
        """The number of parts that the model has."""
        return self.stages * (1 if self.shape == "cross" else self.chunks)

    @property
    def copies(self) -> int:
        """The number of workers that have the same part of the model, and share the micro-batches."""
        return 2 if self.shape == "cross" else self.workers(self.stage)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """The part of the model that each chunk is. Every message needs it, so it is computed once."""
        rows = (0 if self.shape == "cross" else chunk for chunk in range(self.chunks))
        return tuple(row * self.stages + self.turned(chunk, self.stage) for chunk, row in enumerate(rows))

    def holder(self, position: int, chunk: int) -> int:
        """The stage that has this part of the model; in a cross, of the model that the chunk belongs to."""
        row, stage = divmod(position, self.stages)
        return self.turned(chunk if self.shape == "cross" else row, stage)

    def turned(self, row: int, stage: int) -> int:
        """The stage, counted from the end if the row runs back."""
        return self.stages - 1 - stage if row % 2 and self.shape != "loop" else stage

    def is_first(self, chunk: int) -> bool:
        return self.positions[chunk] == 0

    def is_last(self, chunk: int) -> bool:
        return self.positions[chunk] == self.parts - 1

    def workers(self, stage: int) -> int:
        return self.replicas[stage] if self.replicas else 1

    def boundary(self, message: Send | Receive) -> int:
        """The boundary of the model that a message crosses: b is between the parts b and b + 1."""
        outgoing = isinstance(message, Send) == (message.what == ACTIVATION)
        return self.positions[message.chunk] - (0 if outgoing else 1)

    def name(self, message: Send | Receive) -> tuple[str, int, int]:
        """What a message is called at both of its ends."""
        return message.what, message.micro_batch, self.boundary(message)

    def far_stage(self, message: Send | Receive) -> int:
        """The stage at the other end: this one itself, if the message goes from chunk to chunk of one stage."""
        here, boundary = self.positions[message.chunk], self.boundary(message)
        return self.holder(boundary + 1 if here == boundary else boundary, message.chunk)

    def peer(self, message: Send | Receive) -> int:
        """The rank at the other end. Ranks count through the replicas of the first stage, then of the second, …"""
        stage = self.far_stage(message)
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


def forward(at: StagePlace, k: int, chunk: int = 0, version: int = 0) -> Instructions:
    if not at.is_first(chunk):
        yield Receive(ACTIVATION, k, chunk)
    yield Forward(k, chunk, version)
    if not at.is_last(chunk):
        yield Send(ACTIVATION, k, chunk)


def backward(at: StagePlace, k: int, chunk: int = 0, weight: bool = True) -> Instructions:
    """B, and, with `weight`, also W before the gradient goes upstream."""
    if not at.is_last(chunk):
        yield Receive(GRADIENT, k, chunk)
    yield Backward(k, chunk)
    if weight:
        yield Weight(k, chunk)
    if not at.is_first(chunk):
        yield Send(GRADIENT, k, chunk)


def both(at: StagePlace, ahead: tuple[int, int], back: tuple[int, int]) -> Instructions:
    """A forward that overlaps with a backward: first both wait for messages, and at the end both send. ahead, back:
    micro-batch and chunk of each."""
    around = [*forward(at, *ahead), *backward(at, *back)]
    yield from (message for message in around if isinstance(message, Receive))
    yield Both(Forward(*ahead), Backward(*back))
    yield from (message for message in around if isinstance(message, Send))
