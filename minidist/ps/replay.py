"""What workers and servers did, done by one process: the same pushes and updates, in the order that they recorded.

Which weights a worker reads, and whose push comes first, simulated time decides; claims say whether that keeps its
bounds. So the order is taken as it was. Every number is computed here anew: gradients by the plain engine, one worker's
rows after another's, and updates key by key on one array. No message is sent, and no code of the chapter is used.
"""

import math
from collections.abc import Mapping

import numpy as np

from minidist.command import Job
from minidist.engine import Engine
from minidist.nn.layers import Tokens
from minidist.nn.optim import clipping_factor
from minidist.nn.tensor import Array
from minidist.papers.collectives import chunk_sizes
from minidist.ps.outcome import TrainedRun
from minidist.ps.plan import RankPlan, divided

Pushed = tuple[float, Array]  # a worker's share of the batch, and what it pushes of all keys


class Replay(Engine):
    """Serial training of workers' iterations."""

    def __init__(self, job: Job, plan: RankPlan, outcome: TrainedRun) -> None:
        super().__init__(divided(job.units, len(plan.servers)), job.settings)  # the same keys
        self.plan, self.outcome = plan, outcome
        self.worker: int | None = None  # whose rows a pass is for; None: all
        self.accrued = [np.zeros(plan.size) for _ in plan.workers]  # gradients that a filter has kept back
        self.losses = np.zeros(plan.options.steps - plan.first_step)
        self.corpus, self.taken = job.corpus, 0
        self.ranges: list[list[Array]] = []  # [weights, *moments] of each
        self.history: list[list[Array]] = []  # of each range, its weights after each update

    def train_batch(self, x: Tokens, y: Tokens) -> float:
        """The loss of the next step. All are taken at the first call, because workers are in different ones."""
        if not self.taken:
            states = zip(*([flat.master, *flat.moments] for flat in self.flats), strict=True)  # each of all keys
            whole = [np.concatenate(state) for state in states]
            self.ranges = [[state[each.keys] for state in whole] for each in self.plan.ranges]
            self.history = [[weights.copy()] for weights, *_ in self.ranges]
            self.train_in_step() if self.plan.aggregate else self.train_in_order(self.outcome)
            self.write()
        self.taken += 1
        return float(self.losses[self.taken - 1])

    def rows(self, n: int) -> range:
        if self.worker is None:
            return range(n)
        sizes = chunk_sizes(n, len(self.plan.workers))
        first = sum(sizes[: self.worker])
        return range(first, first + sizes[self.worker])

    # ---- a worker ---------------------------------------------------------------------------------------------------

    def push_of(self, worker: int, clock: int, weights: Array) -> Pushed:
        """A worker's push of an iteration, from the weights that it has read."""
        plan, o = self.plan, self.plan.options
        self.worker, sizes = worker, chunk_sizes(o.batch // o.accumulate, len(plan.workers))
        share, total = sizes[worker] / sum(sizes), self.accrued[worker]
        first = plan.first_step + clock * o.local_steps
        for self.steps in range(first, min(first + o.local_steps, o.steps)):
            offset = 0
            for flat in self.flats:
                flat.param[...] = weights[offset : offset + flat.padded]
                flat.grad.fill(0)
                offset += flat.padded
            x, y = self.corpus.batch(o.batch, o.context, key=(o.seed, self.steps))
            for self.micro_batch, part in enumerate(
                zip(*(np.split(tokens, o.accumulate) for tokens in (x, y)), strict=True)
            ):
                loss = self.forward(*part)
                self.losses[self.steps - plan.first_step] += loss.value
                self.backward(loss)
            gradient = np.concatenate([flat.grad for flat in self.flats])
            total += gradient
            lr = self.settings.learning_rate(plan.first_update + self.steps - plan.first_step)
            weights = weights - lr / share * gradient
        scale = 1.0
        if not plan.aggregate:
            norm = math.sqrt(total @ total) / share
            scale = clipping_factor(norm, self.settings.clip * o.local_steps) / share
        values = total * scale
        passed = np.abs(values) > o.filter if o.filter else np.full(plan.size, True)
        total[passed] = 0
        return share, np.where(passed, values, 0)

    # ---- a server ---------------------------------------------------------------------------------------------------

    def update_range(self, i: int, gradient: Array, scale: float, lr: float, step: int) -> None:
        weights, *moments = self.ranges[i]
        decayed = self.plan.ranges[i].decayed
        self.settings.optimizer.update(weights, gradient, moments, scale=scale, lr=lr, step=step, decayed=decayed)
        self.history[i].append(weights.copy())

    def rate(self, clock: int) -> float:
        return self.settings.learning_rate(self.plan.first_update + clock * self.plan.options.local_steps)

    def train_in_step(self) -> None:
        """bsp: all workers' pushes of an iteration make one update."""
        plan = self.plan
        for clock in range(plan.iterations):
            weights = np.concatenate([versions[-1] for versions in self.history])
            pushes = [self.push_of(worker, clock, weights)[1] for worker in range(len(plan.workers))]
            total = np.sum(pushes, axis=0)
            scale = clipping_factor(math.sqrt(total @ total), self.settings.clip * plan.options.local_steps)
            for i, each in enumerate(plan.ranges):
                self.update_range(i, total[each.keys], scale, self.rate(clock), plan.first_update + clock + 1)

    def train_in_order(self, outcome: TrainedRun) -> None:
        """ssp, async: each push is an update, in the order of each range's server. A read has as many of them as its
        vector clock says."""
        plan, pushes, clocks = self.plan, dict[tuple[int, int], Pushed](), [0] * len(outcome.logs)
        order, before = outcome.order, plan.first_update * len(plan.workers)
        moved = True
        while moved:
            moved = False
            for worker, log in enumerate(outcome.logs):
                clock = clocks[worker]
                seen: Mapping[int, int] = log.seen.get(clock, {})
                here = [made < len(self.history[i]) for i, made in seen.items()]
                if clock == plan.iterations or not all(here) or len(here) < len(plan.ranges):
                    continue
                weights = np.concatenate([self.history[i][seen[i]] for i in range(len(plan.ranges))])
                pushes[worker, clock] = self.push_of(worker, clock, weights)
                clocks[worker], moved = clock + 1, True
            for i, each in enumerate(plan.ranges):
                while (made := len(self.history[i]) - 1) < len(order[i]) and order[i][made] in pushes:
                    worker, clock = order[i][made]
                    share, values = pushes[worker, clock]
                    self.update_range(i, values[each.keys], 1.0, self.rate(clock) * share, before + made + 1)

    def write(self) -> None:
        """Put the last weights into the Flats."""
        offset, weights = 0, np.concatenate([weights for weights, *_ in self.ranges])
        for flat in self.flats:
            flat.master[...] = weights[offset : offset + flat.padded]
            offset += flat.padded
