"""Two engines: a worker's, whose weights the servers update, and the whole model's, to begin and end a run."""

import math
from dataclasses import replace

import numpy as np

from minidist import Stopped, ring, train
from minidist.checkpoints import checkpoint
from minidist.command import Job
from minidist.engine import Engine, Settings
from minidist.nn.flat import Flat
from minidist.nn.layers import Unit, flats_of
from minidist.nn.optim import SGD, clipping_factor, sum_of_squares
from minidist.nn.tensor import Array
from minidist.ps.outcome import TrainedRun
from minidist.ps.plan import Range, RankPlan, divided
from minidist.ps.simulated_time import step_seconds


class Gradients(Engine):
    """Forward and backward on a worker's share of the rows. All S weights are in one array, and all S gradients in
    another; the units' arrays are views of these."""

    def __init__(self, units: list[Unit], settings: Settings, plan: RankPlan, number: int) -> None:
        super().__init__(units, replace(settings, optimizer=SGD()))  # the optimizer's state is on the servers
        self.plan, self.number = plan, number
        for kind, array in (("parameters", self.weights), ("gradients", self.grads), ("gradients", self.accrued)):
            self.device.hold(kind, array)
        self.steps = plan.first_step
        self.share = self.scale = 1.0  # of the batch; factor of what is pushed

    def make_memories(self) -> None:
        super().make_memories()
        size = sum(flat.padded for flat in flats_of(self.units))
        self.weights, self.grads, self.accrued = (np.zeros(size, self.precision.stored) for _ in range(3))
        self.placed = 0  # keys that are assigned to units so far

    def allocate(self, flat: Flat, start: Array) -> None:
        """A unit's place among the S weights and gradients. The weights themselves come with the first pull."""
        keys = slice(self.placed, self.placed + flat.padded)
        flat.param, flat.grad, self.placed = self.weights[keys], self.grads[keys], keys.stop

    def rows(self, n: int) -> range:
        rows = ring.chunk(n, len(self.plan.workers), self.number)
        self.share = (rows.stop - rows.start) / n
        return range(rows.start, rows.stop)

    def compute(self, job: Job) -> list[tuple[float, float]]:
        """An iteration: one gradient, or with --local-steps several, each but the last followed by a step of its own
        (Dean et al., "Large scale distributed deep networks", NIPS 2012, algorithm 7.1). Their sum is to be pushed.

        Returns the loss and the simulated seconds of each step.
        """
        own, first, done = self.plan.own, self.steps, []
        steps = min(own.local_steps, self.plan.steps - first)
        slow = math.prod(factor for rank, factor in own.slow if rank == self.plan.workers[self.number])
        for step in range(first, first + steps):
            self.passed.clear()
            loss = train.train_step(self, job, step)
            tokens = round(self.share * job.training.batch) * job.model.context
            key = (job.training.seed, self.number, step)
            done.append((loss, step_seconds(self.placed, tokens, own.jitter, slow, key)))
            self.accrued += self.grads
            if step + 1 < first + steps:
                lr = self.settings.learning_rate(self.plan.first_update + step - self.plan.first_step)
                self.weights -= lr / self.share * self.grads
            self.grads.fill(0)
        self.scale = 1.0
        if not self.plan.aggregate:  # no sum over workers follows: the mean over this worker's rows, clipped here
            norm = math.sqrt(sum_of_squares(self.accrued)) / self.share
            if not math.isfinite(norm):
                raise Stopped("the gradient is not finite: lower --lr")
            self.scale = clipping_factor(norm, self.settings.clip * own.local_steps) / self.share
        return done

    def apply_gradients(self) -> None:
        """End a step: its gradients stay in self.grads."""
        self.steps, self.micro_batch = self.steps + 1, 0

    def gradient(self, each: Range) -> tuple[Array | None, Array]:
        """(keys, values) to push of a range, as many keys as values; keys None: all of the range.

        With --filter, the significantly-modified filter (Li et al., section 3.6): what is not pushed stays accrued.
        """
        values = (self.accrued[each.keys] * self.scale).astype(self.accrued.dtype, copy=False)
        if not self.plan.own.filter:
            self.accrued[each.keys] = 0
            return self.plan.keys_of_range(each), values
        significant = np.flatnonzero(np.abs(values) > self.plan.own.filter)
        keys = each.lo + significant
        self.accrued[keys] = 0
        return keys, values[significant]


class Whole(Engine):
    """The whole model in one place: to start from, and, at the end, to validate, save and sample."""

    def __init__(self, job: Job, shards: int) -> None:
        super().__init__(divided(job.declared(), shards), job.settings)  # rank 0's worker has the arrays of job.units
        if job.files.load:
            checkpoint.load(job.files.load, self)

    def read(self) -> list[Array]:
        """[weights, *moments], each of all keys."""
        rows = zip(*([flat.master, *flat.moments] for flat in self.flats), strict=True)
        return [np.concatenate(row) for row in rows]

    def write(self, outcome: TrainedRun) -> None:
        """Load the arrays that the servers hold."""
        arrays = self.read()
        for held in outcome.held:
            for i, state in (held.state or {}).items():
                for whole, part in zip(arrays, state, strict=True):
                    whole[outcome.plan.ranges[i].keys] = part
        offset = 0
        for flat in self.flats:
            for array, whole in zip([flat.master, *flat.moments], arrays, strict=True):
                array[...] = whole[offset : offset + flat.padded]
            flat.param[...] = flat.master  # rounded, if that is how it is stored
            offset += flat.padded
        done = outcome.plan.steps - outcome.plan.first_step
        self.steps, self.updates = outcome.plan.steps, outcome.plan.first_update + done
