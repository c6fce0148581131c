"""Faults on demand for `minidist.mapreduce`: --inject makes one happen at a place that you choose.

    stop:RANK:map:K      worker RANK stops answering in the middle of the K-th map task that it is given
    stop:RANK:reduce:K   or of the K-th reduce task
    slow:RANK:FACTOR     worker RANK is FACTOR times slower
    bad:TEXT             the map function fails on every line that contains TEXT, which ends the job without --skip-bad
    kill:POINT:K         the whole job is killed by SIGKILL the K-th time that a rank reaches POINT:
                         map       the master learns that a map task is done
                         reduce    the master learns that a reduce task is done
                         region    a worker has written the first part of its region files
                         write     a worker has written a part of an output file
                         commit    a worker has renamed an output file, and not told the master yet

A worker that stops lives on without answering, and leaves when the job ends. A process that really dies ends the whole
job under MPICH, like the master's death in the paper (section 3.3): then --resume continues the job.

The chapter knows nothing about this: it is given a disk and mailboxes with faults, and a job whose map fails.
"""

import functools
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minidist import UsageError
from minidist.mpi.comm import Comm
from minidist.mpi.mailbox import Letter, NumberedMailbox
from minidist.mr.disk import Disk
from minidist.mr.messages import IDLE, MASTER, Do, DropTask, End, TaskDone
from minidist.mr.plan import Plan
from minidist.mr.report import EndedJob
from minidist.system import unix

POINTS = ("map", "reduce", "region", "write", "commit")


@dataclass
class Faults:
    """What will go wrong on this rank."""

    stops: set[tuple[str, int]] = field(default_factory=set)  # ("map", K): this rank stops in its K-th map task
    factor: float = 1.0  # how many times slower this rank is
    bad: str | None = None
    kills: set[tuple[str, int]] = field(default_factory=set)
    passed: Counter[str] = field(default_factory=Counter)  # how often this rank has reached a point

    def mailbox(self, comm: Comm, number: int) -> NumberedMailbox:
        """The master's mailbox, or a worker's."""
        if number == MASTER:
            return MasterMailbox(self, comm, number)
        self.inbox = WorkerMailbox(self.factor, comm, number)
        return self.inbox

    def disk(self, plan: Plan, rank: int) -> Disk:
        """A worker's disk, made after its mailbox."""
        return FaultyDisk(self, plan, rank)

    def poison(self, job: Any) -> None:
        """Let the map function fail on bad lines, as a bug in it would."""
        if (bad := self.bad) is None:
            return
        healthy = job.map

        @functools.wraps(healthy)
        def failing(document: str, line: str) -> Iterable[tuple[str, str]]:
            if bad in line:
                raise ValueError(f"injected: the record contains {bad!r}")
            return healthy(document, line)

        job.map = failing

    def missed(self, rank: int, outcome: EndedJob) -> Iterator[str]:
        """Sentences about faults that were asked for and did not happen in a job that has ended. A worker that should
        have stopped says so itself; rank 0 reports the rest."""
        for kind, k in sorted(self.stops):
            given = self.inbox.given[kind]
            yield f"stop:{rank}:{kind}:{k}: rank {rank} was given {given} {kind} task{'s' * (given != 1)}"
        for point, k in sorted(self.kills) if rank == 0 else ():
            yield f"kill:{point}:{k}: no rank came to {point} {k} time{'s' * (k != 1)}"
        if rank == 0 and self.bad is not None and not outcome.left_out:
            yield f"bad:{self.bad}: no line that was mapped contains it"

    def reach(self, point: str) -> None:
        """This rank has reached a point where the job may be killed."""
        self.passed[point] += 1
        if (point, self.passed[point]) in self.kills:
            os.kill(os.getpid(), unix.KILL)


class MasterMailbox(NumberedMailbox):
    """The master's mailbox: a task that is done may be the POINT at which the job is killed."""

    def __init__(self, faults: Faults, comm: Comm, number: int) -> None:
        super().__init__(comm, number)
        self.faults = faults

    def poll(self) -> Letter | None:
        mail = super().poll()
        if mail is not None and isinstance(mail.message, TaskDone):
            self.faults.reach(mail.message.task[0])
        return mail


class WorkerMailbox(NumberedMailbox):
    """The mailbox of a slow machine, or of one that stops answering."""

    def __init__(self, factor: float, comm: Comm, number: int) -> None:
        super().__init__(comm, number)
        self.factor = factor
        self.given: Counter[str] = Counter()  # kind -> number of tasks
        self.awake, self.debt = time.monotonic(), 0.0  # seconds that a slower machine would still be at work

    def poll(self) -> Letter | None:
        """Take a message as usual; a slower machine looks for one later, when it would have finished its work."""
        self.debt += (self.factor - 1) * (time.monotonic() - self.awake)
        while (mail := super().poll()) is None and self.debt > 0:
            time.sleep(min(self.debt, 0.005))
            self.debt -= 0.005
        if mail is not None and isinstance(mail.message, Do | DropTask | End):
            self.debt = 0.0
            if isinstance(mail.message, Do):
                self.given[mail.message.task[0]] += 1
        self.awake = time.monotonic()
        return mail

    def hang(self) -> None:
        """Answer no message until the end of the job."""
        while (mail := super().poll()) is None or not isinstance(mail.message, End):
            time.sleep(0 if mail else IDLE)
        self.own.append(mail)


class FaultyDisk(Disk):
    """A disk that hangs in the middle of a task, and its worker with it; or that kills the job at a certain point."""

    def __init__(self, faults: Faults, plan: Plan, rank: int) -> None:
        super().__init__(plan, rank)
        self.faults = faults

    def _may_hang(self, kind: str) -> None:
        task = kind, self.faults.inbox.given[kind]
        if task in self.faults.stops:
            self.faults.stops.remove(task)
            self.faults.inbox.hang()

    def append(self, path: Path, data: bytes) -> None:
        self._may_hang("map")
        super().append(path, data)
        self.faults.reach("region")

    def write(self, path: Path, pieces: Iterable[bytes]) -> None:
        self._may_hang("reduce")
        super().write(path, pieces)
        self.faults.reach("write")

    def rename(self, path: Path, name: Path) -> None:
        if path.is_dir():
            self._may_hang("map")  # if it had nothing to write, it has not hung yet
        super().rename(path, name)
        if not name.is_dir():
            self.faults.reach("commit")


def check_tasks(injected: Sequence[str], plan: Plan) -> None:
    """Raise UsageError for a fault in a task that the job does not have."""
    for text in injected:
        words = text.split(":")
        kind, k = (words[2], words[3]) if words[0] == "stop" else (words[1], words[-1])
        tasks = {"map": plan.maps, "reduce": plan.reducers}.get(kind)
        if words[0] in ("stop", "kill") and tasks is not None and int(k) > tasks:
            raise UsageError(f"--inject {text} cannot happen: the job has {tasks} {kind} task{'s' * (tasks != 1)}")


def parse(injected: Sequence[str], rank: int, workers: Sequence[int]) -> Faults:
    """What --inject asks of this rank. Raises UsageError for text that is not understood or cannot work."""
    faults = Faults()
    stopped = set()
    for text in injected:
        try:
            match text.split(":", 1)[0], text.split(":"):
                case "bad", [_, *_]:
                    faults.bad = text.removeprefix("bad:")
                    valid = faults.bad not in ("", "bad")
                case "stop", [_, worker, ("map" | "reduce") as kind, k]:
                    valid = int(worker) in workers and int(k) >= 1
                    stopped.add(int(worker))
                    if int(worker) == rank:
                        faults.stops.add((kind, int(k)))
                case "slow", [_, worker, factor]:
                    valid = int(worker) in workers and 1 <= float(factor) <= 1e6
                    if int(worker) == rank:
                        faults.factor = float(factor)
                case "kill", [_, point, k]:
                    valid = point in POINTS and int(k) >= 1
                    faults.kills.add((point, int(k)))
                case _:
                    valid = False
        except ValueError:
            valid = False
        if not valid:
            names = f"rank {workers[0]}" if len(workers) == 1 else f"ranks {workers[0]} to {workers[-1]}"
            raise UsageError(
                f"cannot do --inject {text}; write stop:RANK:map:K, stop:RANK:reduce:K, slow:RANK:FACTOR, bad:TEXT or"
                f" kill:POINT:K, with POINT one of {', '.join(POINTS)}; the workers are {names}"
            )
    if stopped >= set(workers):
        raise UsageError("--inject stop: one worker at least must go on answering; start more ranks")
    return faults
