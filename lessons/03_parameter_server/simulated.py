"""Workers and a server on a simulated clock, for lesson 03: when workers compute and wait, and what each read sees.

There are no ranks and no messages, which would take no time here. A push becomes an update at once.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from minidist.ps.simulated_time import step_seconds

Gate = Callable[[np.ndarray, int, int, float], bool]  # (clocks, worker, its clock, staleness)


@dataclass
class Read:
    """One pull."""

    worker: int
    clock: int  # iterations that the worker has completed
    asked: float  # when the worker asked, in simulated seconds
    begun: float  # when the gate let it through, and it began to compute
    ended: float  # when it has computed, and pushes
    clocks: list[int]  # for each worker, how many of its updates this read sees

    @property
    def staleness(self) -> int:
        """How many updates of the slowest other worker are missing."""
        return max(self.clock - min(self.clocks), 0)


@dataclass
class Run:
    """All that happened, in order of time."""

    reads: list[Read] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)  # at first, and after each push

    @property
    def idle(self) -> float:
        """The share of all workers' time that they spent waiting for others."""
        waited = sum(read.begun - read.asked for read in self.reads)
        return waited / sum(read.ended - read.asked for read in self.reads)

    @property
    def oldest_gradient(self) -> int:
        """The most pushes of others between a worker's read and its own push."""
        ends = np.array([read.ended for read in self.reads])
        return max(int(np.sum((ends > read.begun) & (ends < read.ended))) for read in self.reads)

    def count_iterations(self, worker: int, until: float) -> int:
        """How many iterations a worker has done at some time."""
        return sum(read.worker == worker and read.ended <= until for read in self.reads)


def simulate(
    seconds: Sequence[Sequence[float]], gate: Gate, staleness: float = math.inf, q: float = 0.0, weight: float = 1.0
) -> Run:
    """Worker w's iteration c takes seconds[w][c]. The loss is ½λw², and a push is an update, w = w - q·(w as it was
    read), where q is learning rate times λ.

    Raises RuntimeError if the gate holds back every worker.
    """
    run = Run(weights=[weight])
    clocks = [0] * len(seconds)
    asking = {worker: 0.0 for worker in range(len(seconds))}  # since when
    computing: list[tuple[float, int, float]] = []  # (when it ends, worker, the weight that it has read)
    now = 0.0
    while asking or computing:
        for worker, asked in sorted(asking.items(), key=lambda item: (item[1], item[0])):
            clock = clocks[worker]
            if gate(np.array(clocks), worker, clock, staleness):
                del asking[worker]
                ended = now + seconds[worker][clock]
                run.reads.append(Read(worker, clock, asked, now, ended, list(clocks)))
                heapq.heappush(computing, (ended, worker, run.weights[-1]))
        if not computing:
            raise RuntimeError(f"at {now:g} s the gate holds back every worker, and none computes: clocks {clocks}")
        now, worker, read = heapq.heappop(computing)
        run.weights.append(run.weights[-1] - q * read)
        clocks[worker] += 1
        if clocks[worker] < len(seconds[worker]):
            asking[worker] = now
    return run


def in_turns(workers: int, pushes: int) -> list[list[float]]:
    """Seconds of equally fast workers that push one after another, one each second: about `pushes` pushes in total."""
    return [[worker + 1.0] + [float(workers)] * (pushes // workers) for worker in range(workers)]


def with_luck(workers: int, iterations: int, seed: int = 1) -> list[list[float]]:
    """Seconds as on a shared cluster: each iteration is a matter of luck; in the long run all workers are equally fast.

    It is the chapter's deck of cards (minidist/ps/simulated_time.py), here with a mean of one second.
    """
    mean = step_seconds(1, 1, 0.0, 1.0, (seed, 0, 0))
    return [[step_seconds(1, 1, 1.0, 1.0, (seed, w, c)) / mean for c in range(iterations)] for w in range(workers)]
