"""A logical clock that watches one worker perform its instructions. It knows no schedule, and no tensor.

Each message is accompanied by the sender's time: between ranks on the control channel (`OverRanks`), or within one
process (`simulate`), which is enough to draw a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from minidist.mpi.clock import Clock
from minidist.pp.instructions import (
    ACTIVATION,
    GRADIENT,
    Backward,
    Both,
    Forward,
    Instruction,
    Instructions,
    Receive,
    Send,
    StagePlace,
    Step,
    Weight,
    name_of,
)
from minidist.pp.timeline import Mail, Timeline, WorkSpan

if TYPE_CHECKING:  # a plan draws schedules without NumPy
    from minidist.mpi.comm import Comm

# Also R: a recomputed forward; F&B: a forward and a whole backward that overlap, if they take less than both.
UNIT_COSTS = {"F": 1.0, "B": 1.0, "W": 1.0}


class Stamps(Protocol):
    """Carries the sender's time with each message. Sending does not wait."""

    def send(self, message: Send, time: float) -> None: ...

    def receive(self, message: Receive) -> float: ...


class StageClock:
    """One worker's time, and what it did when."""

    def __init__(self, at: StagePlace, stamps: Stamps, costs: dict[str, float], latency: float = 0.0) -> None:
        self.at, self.stamps, self.costs = at, stamps, costs
        self.clock = Clock(latency)
        replica = f".{at.replica}" if at.workers(at.stage) > 1 else ""
        self.timeline = Timeline(f"stage {at.stage}{replica}")
        self.versions: dict[tuple[int, int], int] = {}  # (micro-batch, chunk) -> version that its forward used

    def see(self, instruction: Instruction) -> None:
        """Note an instruction that the worker has performed."""
        match instruction:
            case Send():
                self.stamps.send(instruction, self.clock.now)
                if self._crosses(instruction):
                    self._note(instruction)
            case Receive():
                sent = self.stamps.receive(instruction)
                if self._crosses(instruction):  # a stage's message to itself is from its own past
                    self.clock.receive(sent)
                    self._note(instruction)
            case Forward(k, chunk, version):
                self.versions[k, chunk] = version
                self._work("F", instruction)
            case Backward():
                if self.costs.get("R"):
                    self._work("R", instruction)
                self._work("B", instruction)
            case Weight(k, chunk):
                self._work("W", instruction)
                del self.versions[k, chunk]
            case Both(ahead, back):
                start, apart = self.clock.now, sum(self.costs.get(letter, 0.0) for letter in "FRBW")
                self.clock.work(self.costs.get("F&B", apart))
                names = (ahead.micro_batch, ahead.chunk), (back.micro_batch, back.chunk)
                self.timeline.spans.append(WorkSpan("F&B", start, self.clock.now, *names[0], along=names[1]))
                self.versions[names[0]] = self.versions.pop(names[1])
            case Step():
                self.timeline.steps.append(self.clock.now)

    def _work(self, letter: str, work: Forward | Backward | Weight) -> None:
        start, version = self.clock.now, self.versions[work.micro_batch, work.chunk]
        self.clock.work(self.costs[letter])
        self.timeline.spans.append(WorkSpan(letter, start, self.clock.now, work.micro_batch, work.chunk, version))

    def _note(self, message: Send | Receive) -> None:
        self.timeline.mail.append(Mail(self.at.name(message), self.clock.now, isinstance(message, Send)))

    def _crosses(self, message: Send | Receive) -> bool:
        """Whether it goes to another stage: from chunk to chunk of the same stage, nothing is sent."""
        return self.at.far_stage(message) != self.at.stage


class OverRanks:
    """Stamps between workers that are ranks."""

    def __init__(self, at: StagePlace, comm: Comm) -> None:
        # Stamps of one kind between two ranks arrive in the order in which they are waited for; those of both kinds
        # together may not, where two stages are each other's next. So each kind has a communicator.
        self.at, self.comms = at, {what: comm.split(0) for what in (ACTIVATION, GRADIENT)}
        self.to_itself: dict[tuple[str, int, int], float] = {}  # from chunk to chunk of one rank

    def send(self, message: Send, time: float) -> None:
        comm, dest = self.comms[message.what], self.at.peer(message)
        if dest == comm.rank:
            self.to_itself[self.at.name(message)] = time
        else:
            comm.send_object(time, dest)

    def receive(self, message: Receive) -> float:
        comm, source = self.comms[message.what], self.at.peer(message)
        if source == comm.rank:
            return self.to_itself.pop(self.at.name(message))
        return float(comm.recv_object(source))


class InProcess:
    """A worker's access to the mail of all workers: the time at which each message on its way was sent, by its name."""

    def __init__(self, at: StagePlace, mail: dict[tuple[str, int, int], float]) -> None:
        self.at, self.mail = at, mail

    def send(self, message: Send, time: float) -> None:
        self.mail[self.at.name(message)] = time

    def receive(self, message: Receive) -> float:
        return self.mail.pop(self.at.name(message))


def simulate(
    streams: Sequence[tuple[StagePlace, Instructions]], costs: dict[str, float], latency: float = 0.0
) -> list[Timeline]:
    """All workers in one process, with only a clock: each goes on until it waits for a message that is not there.
    Raises ValueError if none can go on."""
    mail: dict[tuple[str, int, int], float] = {}

    def run(watch: StageClock, stream: Instructions) -> Iterator[Receive]:
        for instruction in stream:
            while isinstance(instruction, Receive) and watch.at.name(instruction) not in mail:
                yield instruction
            watch.see(instruction)

    watches = [StageClock(at, InProcess(at, mail), costs, latency) for at, _ in streams]
    running = {rank: run(watch, stream) for rank, (watch, (_, stream)) in enumerate(zip(watches, streams, strict=True))}
    before: dict[int, Receive] = {}
    while running:
        waiting = {rank: message for rank, one in running.items() if (message := next(one, None))}
        if waiting and waiting == before:
            raise ValueError(tell_deadlock([at for at, _ in streams], waiting))
        running, before = {rank: running[rank] for rank in waiting}, waiting
    return [watch.timeline for watch in watches]


def tell_deadlock(places: Sequence[StagePlace], waiting: dict[int, Receive]) -> str:
    """Which worker waits for which. waiting: by rank, the message that never comes."""
    chain, rank = list[int](), min(waiting)
    while rank in waiting and rank not in chain:
        chain.append(rank)
        rank = places[rank].peer(waiting[rank])
    chain = chain[chain.index(rank) :] if rank in chain else chain  # without those that wait for the cycle
    names = [f"stage {places[one].stage}" for one in [*chain, rank]]
    waits = [f"{names[i]} in '{name_of(waiting[one])}' for {names[i + 1]}" for i, one in enumerate(chain)]
    return f"deadlock: {', and '.join(waits)}{'' if rank in waiting else ', which has ended'}"
