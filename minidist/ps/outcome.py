"""The result of a run: what each worker and each holder of a shard recorded, and what rank 0 collects at the end."""

import math
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from minidist.nn.tensor import Array
from minidist.ps.plan import RankPlan
from minidist.ps.replication import ReplicaChain
from minidist.ps.vector_clock import RangeClocks

WINDOW = 10  # losses are shown as the mean of this number of steps


@dataclass
class WorkerLog:
    """What a worker did. Times are simulated, in seconds, except for the milliseconds."""

    losses: list[float] = field(default_factory=list)  # of each step: this worker's part of the batch's loss
    ended: list[float] = field(default_factory=list)  # when each step ended
    computing: float = 0.0
    wire: float = 0.0  # waiting for messages to get through
    held: float = 0.0  # waiting for other workers
    reads: list[tuple[int, int, int, int]] = field(default_factory=list)  # clocks: its own, oldest, newest, of itself
    seen: dict[int, dict[int, int]] = field(default_factory=dict)  # clock -> range -> updates that were in what it read
    pushed: Counter[int] = field(default_factory=Counter)  # to each shard, elements: all, or those that passed a filter
    milliseconds: list[float] = field(default_factory=list)
    tokens: dict[int, float] = field(default_factory=dict)  # in a step, through each unit: by their first sequence

    def step(self, loss: float, seconds: float, ended: float) -> None:
        """A step has ended."""
        self.losses.append(loss)
        self.computing += seconds
        self.ended.append(ended)

    def read(self, clock: int, i: int, clocks: Array, worker: int) -> None:
        """A worker that has done `clock` iterations has read range i's weights, which are of these clocks."""
        self.seen.setdefault(clock, {})[i] = int(clocks.sum())
        self.reads.append((clock, int(clocks.min()), int(clocks.max()), int(clocks[worker])))


@dataclass
class HeldShard:
    """A shard as one of its holders has it at the end."""

    shard: int
    serves: int | None  # the rank whose server had it at first, if this one serves it now
    state: dict[int, list[Array]] | None  # of the one that serves it
    digest: str
    clocks: int  # numbers in its vector clocks
    nbytes: tuple[int, int]  # weights, optimizer state
    order: list[tuple[int, int, int]]  # of its updates: range, worker, clock

    @classmethod
    def of(
        cls, chain: ReplicaChain, state: dict[int, list[Array]], clocks: RangeClocks, order: list[tuple[int, int, int]]
    ) -> "HeldShard":
        """state: [weights, *moments] of each range."""
        arrays = [array for arrays in state.values() for array in arrays]
        weights = sum(weights.nbytes for weights, *_ in state.values())
        return cls(
            chain.shard,
            chain.plan.servers[chain.shard] if chain.serves else None,
            state if chain.serves else None,
            blake2b(b"".join(array.tobytes() for array in arrays)).hexdigest(),
            clocks.numbers,
            (weights, sum(array.nbytes for array in arrays) - weights),
            order,
        )


@dataclass
class RankOutcome:
    """What one rank did."""

    log: WorkerLog | None
    sent: dict[tuple[str, int], list[int]]  # (phase, rank) -> [bytes, messages]
    received: int  # bytes, headers included
    held: list[HeldShard]


@dataclass
class TrainedRun:
    """A run, as rank 0 knows it at the end."""

    plan: RankPlan
    ranks: list[RankOutcome]

    @property
    def logs(self) -> list[WorkerLog]:
        return [rank.log for rank in self.ranks if rank.log]

    @property
    def held(self) -> list[HeldShard]:
        """Every shard, by every rank that holds it."""
        return [held for rank in self.ranks for held in rank.held]

    @property
    def order(self) -> dict[int, list[tuple[int, int]]]:
        """The pushes that made each range's updates, in order: worker, clock. By range."""
        found: dict[int, list[tuple[int, int]]] = {}
        for i, *push in (update for held in self.held if held.serves is not None for update in held.order):
            found.setdefault(i, []).append((push[0], push[1]))
        return found

    @property
    def losses(self) -> list[float]:
        """The loss of the global batch at each step: each worker computes its part with the weights that it has."""
        return [sum(parts) for parts in zip(*(log.losses for log in self.logs), strict=True)]

    @property
    def seconds(self) -> float:
        return max((log.computing + log.wire + log.held for log in self.logs), default=0.0)

    def part(self, kind: str) -> float:
        """The share of all workers' time that they spent computing, on the wire, or held back."""
        total = sum(log.computing + log.wire + log.held for log in self.logs)
        return sum(getattr(log, kind) for log in self.logs) / total if total else 0.0

    def loss_before(self, seconds: float) -> float:
        """The loss at a moment of simulated time: the mean of each worker's last WINDOW steps until then, summed."""
        parts = []
        for log in self.logs:
            done = sum(end <= seconds for end in log.ended)
            parts.append(np.mean(log.losses[max(0, done - WINDOW) : done]) if done else math.nan)
        return float(sum(parts))

    def sent(self, phase: str, source: int, dest: int | None = None) -> int:
        """Bytes that a rank sent in a phase, to one rank or to all."""
        return sum(
            n for (name, peer), (n, _) in self.ranks[source].sent.items() if name == phase and dest in (None, peer)
        )

    def received(self, phase: str, dest: int) -> int:
        """Bytes that all ranks together sent to one in a phase."""
        return sum(self.sent(phase, source, dest) for source in range(len(self.ranks)))

    def simulated(self) -> dict[str, Any]:
        """For machines: where the simulated time went, and every read."""
        return {
            "seconds": self.seconds,
            "computing": self.part("computing"),
            "wire": self.part("wire"),
            "idle": self.part("held"),
            "ended": [log.ended for log in self.logs],
            "reads": [log.reads for log in self.logs],
        }
