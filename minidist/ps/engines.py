"""A worker's engine: forward and backward on a share of the rows, with weights that others update."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from minidist import train
from minidist.data import Corpus
from minidist.engine import Engine, Settings
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit
from minidist.nn.optim import SGD, clipping_factor, squared_norm
from minidist.nn.tensor import Array
from minidist.ps.plan import Plan, share
from minidist.ps.simulated_time import step_seconds


@dataclass
class WorkerLog:
    """What a worker did. Times are simulated, in seconds, except for the milliseconds."""

    losses: list[float] = field(default_factory=list)  # of each step: this worker's part of the batch's loss
    ended: list[float] = field(default_factory=list)  # when each step ended
    computing: float = 0.0
    wire: float = 0.0  # waiting for messages to get through
    held: float = 0.0  # waiting for other workers
    reads: list[tuple[int, int, int, int]] = field(default_factory=list)  # clocks: its own, oldest, newest, of itself
    significant: int = 0  # gradient elements that passed the filter
    milliseconds: list[float] = field(default_factory=list)


class Gradients(Engine):
    """All S weights in one array, and all S gradients in another, of which the units' are views."""

    def __init__(self, units: list[Unit], settings: Settings, plan: Plan, number: int) -> None:
        self.plan, self.number, self.shards = plan, number, len(plan.servers)
        self.weights, self.grads, self.accrued = np.zeros((3, plan.size), settings.precision.stored)
        self.placed = 0  # keys that have a unit
        super().__init__(units, replace(settings, optimizer=SGD()))  # the optimizer's state is on the servers
        self.steps = plan.first_step
        self.first = 0  # the number of the iteration's first step
        self.share = self.scale = 1.0  # of the batch; of what is pushed
        self.now, self.log = 0.0, WorkerLog()

    def allocate(self, flat: Flat, start: Array) -> None:
        """A unit's place among the S weights and gradients. The weights themselves come with the first pull."""
        keys = slice(self.placed, self.placed + flat.padded)
        flat.param, flat.grad, self.placed = self.weights[keys], self.grads[keys], keys.stop

    def rows(self, n: int) -> range:
        rows = share(n, len(self.plan.workers), self.number)
        self.share = len(rows) / n
        return rows

    def compute(self, corpus: Corpus) -> None:
        """An iteration: one gradient, or with --local-steps several, each but the last followed by a step of its own
        (Dean et al., "Large scale distributed deep networks", NIPS 2012, algorithm 7.1). Their sum is pushed."""
        options, first = self.plan.options, self.steps
        steps = min(options.local_steps, options.steps - first)
        slow = math.prod(factor for rank, factor in options.slow if rank == self.plan.workers[self.number])
        for step in range(first, first + steps):
            self.log.losses.append(train.train_step(self, corpus, options, step))
            tokens = round(self.share * options.batch) * options.context
            seconds = step_seconds(self.placed, tokens, options.jitter, slow, (options.seed, self.number, step))
            self.now += seconds
            self.log.computing += seconds
            self.log.ended.append(self.now)
            self.accrued += self.grads
            if step + 1 < first + steps:
                lr = self.settings.learning_rate(self.plan.first_update + step - self.plan.first_step)
                self.weights -= lr / self.share * self.grads
            self.grads.fill(0)
        self.scale = 1.0
        if not self.plan.aggregate:  # nobody else will see this gradient: the mean over the own rows, clipped here
            norm = math.sqrt(squared_norm(self.accrued)) / self.share
            if not math.isfinite(norm):
                raise FloatingPointError("the gradient is not finite: lower --lr")
            self.scale = clipping_factor(norm, self.settings.clip * options.local_steps) / self.share
        self.first = first - self.plan.first_step

    def step(self) -> None:
        """After each backward: gradients wait in self.grads."""
        self.micro_batch = (self.micro_batch + 1) % self.settings.accumulate
        self.steps += self.micro_batch == 0
