"""Faults on demand for `minidist.mapreduce`: --inject makes one happen at a place that the reader chooses.

    stop:RANK:map:K      worker RANK stops answering in the middle of the K-th map task that it is given
    stop:RANK:reduce:K   or of the K-th reduce task
    slow:RANK:FACTOR     worker RANK is FACTOR times slower
    bad:TEXT             the map function fails on every line that contains TEXT
    kill:POINT:K         the whole job is killed by SIGKILL the K-th time that a rank comes to POINT:
                         map       the master learns that a map task is done
                         reduce    the master learns that a reduce task is done
                         region    a worker has written the first part of its region files
                         write     a worker has written a part of an output file
                         commit    a worker has renamed an output file, and not told the master yet

A worker that stops lives on without answering, and leaves when the job ends. A process that really dies takes an MPICH
job with it, as the death of the master does in the paper (section 3.3): then --resume goes on.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minidist import UsageError

POINTS = ("map", "reduce", "region", "write", "commit")


@dataclass
class Faults:
    """What is to go wrong on this rank."""

    stops: set[tuple[str, int]] = field(default_factory=set)  # ("map", K): this rank stops in its K-th map task
    factor: float = 1.0  # how many times slower this rank is
    bad: str | None = None
    kills: set[tuple[str, int]] = field(default_factory=set)
    passed: Counter[str] = field(default_factory=Counter)  # how often this rank has come to a point
    rested: float = 0.0  # when this rank last slept for being slow

    def at(self, point: str) -> None:
        """This rank has come to a point where the job may be killed."""
        self.passed[point] += 1
        if (point, self.passed[point]) in self.kills:
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(self, kind: str) -> bool:
        """A task of a kind begins; whether this rank stops answering in the middle of it."""
        self.passed[f"{kind} task"] += 1
        self.rested = time.monotonic()
        return (kind, self.passed[f"{kind} task"]) in self.stops

    def drag(self, answer: Callable[[], None]) -> None:
        """Sleep as long as a slower machine would have worked since the last time; answer others meanwhile."""
        if self.factor > 1:
            awake = time.monotonic() + (self.factor - 1) * (time.monotonic() - self.rested)
            while (left := awake - time.monotonic()) > 0:
                time.sleep(min(left, 0.005))
                answer()
            self.rested = time.monotonic()

    def check(self, line: str) -> None:
        """Fail, as a bug in the map function would, on a bad record."""
        if self.bad is not None and self.bad in line:
            raise ValueError(f"injected: the record contains {self.bad!r}")


def parse(injected: Sequence[str], rank: int, workers: Sequence[int]) -> Faults:
    """What --inject asks of this rank. Raises UsageError for what cannot be understood or cannot work."""
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
