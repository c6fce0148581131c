"""The interpreter of schedules: one worker's instructions on a logical clock, and on tensors if there are any.

A `Worker` knows no schedule, and a schedule no worker; between them are the instructions. Messages go over ranks, each
with the sender's time beside it (`OverRanks`), or stay in one process (`simulate`), which is enough to draw a schedule.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from minidist.mpi.clock import Clock
from minidist.pp.schedules import (
    ACTIVATION,
    GRADIENT,
    Backward,
    Forward,
    Instruction,
    Instructions,
    Place,
    Receive,
    Send,
    Step,
    Weight,
)
from minidist.pp.timeline import Mail, Span, Timeline

if TYPE_CHECKING:  # one process does without MPI
    from minidist.mpi.comm import Comm, Request

Array = np.ndarray
UNIT_COSTS = {"F": 1.0, "B": 1.0, "W": 1.0}  # and R: the forward once more, where activations are recomputed


class Stage(Protocol):
    """The tensors of a worker."""

    def compute(self, instruction: Forward | Backward | Weight | Step) -> None: ...

    def outgoing(self, message: Send) -> Array:
        """What to send. It is not written again."""
        ...

    def incoming(self, message: Receive) -> Array:
        """Where to receive: a buffer for this message alone."""
        ...


class Wire(Protocol):
    """Carries messages, with tensors or without, each with the sender's time. Sending does not wait."""

    def send(self, message: Send, array: Array | None, time: float) -> None: ...

    def receive(self, message: Receive, out: Array | None) -> float: ...


class Worker:
    """Performs instructions, one after the other."""

    def __init__(
        self, at: Place, wire: Wire, costs: dict[str, float], latency: float = 0.0, stage: Stage | None = None
    ) -> None:
        self.at, self.wire, self.costs, self.stage = at, wire, costs, stage
        self.clock = Clock(latency)
        replica = f".{at.replica + 1}" if at.workers(at.stage) > 1 else ""
        self.timeline = Timeline(f"stage {at.stage + 1}{replica}")

    def perform(self, instruction: Instruction) -> None:
        match instruction:
            case Send():
                array = self.stage.outgoing(instruction) if self.stage else None
                self.wire.send(instruction, array, self.clock.now)
                self._note(instruction)
                return
            case Receive():
                out = self.stage.incoming(instruction) if self.stage else None
                self.clock.receive(self.wire.receive(instruction, out), out.nbytes if out is not None else 0)
                self._note(instruction)
                return
            case Forward():
                self._work("F", instruction)
            case Backward():
                if "R" in self.costs:
                    self._work("R", instruction)
                self._work("B", instruction)
            case Weight():
                self._work("W", instruction)
        if self.stage:
            self.stage.compute(instruction)

    def _work(self, letter: str, work: Forward | Backward | Weight) -> None:
        start = self.clock.now
        self.clock.work(self.costs[letter])
        self.timeline.spans.append(Span(letter, start, self.clock.now, work.micro_batch, work.chunk))

    def _note(self, message: Send | Receive) -> None:
        self.timeline.mail.append(Mail(self.at.name(message), self.clock.now, isinstance(message, Send)))


# ---- over ranks ------------------------------------------------------------------------------------------------------


class OverRanks:
    """Tensors as payload, in phases "activations" and "gradients"; the sender's time on the control channel."""

    def __init__(self, at: Place, comm: "Comm") -> None:
        # Messages of one kind between two ranks arrive in the order in which they are waited for; those of both kinds
        # together may not, where two stages are each other's next. So each kind has a communicator.
        self.at, self.comms = at, {what: comm.split(0) for what in (ACTIVATION, GRADIENT)}
        self.requests: list[Request] = []
        self.to_itself: dict[tuple[str, int, int], tuple[Array | None, float]] = {}  # from chunk to chunk of one rank

    def send(self, message: Send, array: Array | None, time: float) -> None:
        comm, dest = self.comms[message.what], self.at.peer(message)
        if dest == comm.rank:
            self.to_itself[self.at.name(message)] = array, time
            return
        if array is not None:
            with comm.phase(message.what, leave_open=True):
                self.requests.append(comm.isend(array, dest))
        comm.send_object(time, dest)
        self.requests = [request for request in self.requests if not request.done()]

    def receive(self, message: Receive, out: Array | None) -> float:
        comm, source = self.comms[message.what], self.at.peer(message)
        if source == comm.rank:
            array, time = self.to_itself.pop(self.at.name(message))
            if out is not None:
                out[...] = array
            return time
        if out is not None:
            comm.recv(out, source)
        return float(comm.recv_object(source))

    def wait(self) -> None:
        """Return when all that was sent has arrived."""
        for request in self.requests:
            request.wait()
        self.requests.clear()


# ---- in one process --------------------------------------------------------------------------------------------------


class InProcess:
    """A worker's access to the mail of all workers: the time at which each message on its way was sent, by its name."""

    def __init__(self, at: Place, mail: dict[tuple[str, int, int], float]) -> None:
        self.at, self.mail = at, mail

    def send(self, message: Send, array: Array | None, time: float) -> None:
        self.mail[self.at.name(message)] = time

    def receive(self, message: Receive, out: Array | None) -> float:
        return self.mail.pop(self.at.name(message))


def simulate(
    streams: Sequence[tuple[Place, Instructions]], costs: dict[str, float], latency: float = 0.0
) -> list[Timeline]:
    """All workers in one process, on the clock alone: each goes on until it waits for a message that is not there."""
    mail: dict[tuple[str, int, int], float] = {}

    def run(worker: Worker, stream: Instructions) -> Iterator[None]:
        for instruction in stream:
            while isinstance(instruction, Receive) and worker.at.name(instruction) not in mail:
                yield
            worker.perform(instruction)

    workers = [Worker(at, InProcess(at, mail), costs, latency) for at, _ in streams]
    running = [run(worker, stream) for worker, (_, stream) in zip(workers, streams, strict=True)]
    while running:
        running = [one for one in running if next(one, "done") != "done"]
    return [worker.timeline for worker in workers]
