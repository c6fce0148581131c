"""The training loop of every chapter; and serial training, the reference for all chapters.

    python -m minidist.train
    python -m minidist.train --data my.txt --steps 2000 --sample 500

Every rank draws the same global batch, by seed and step number: where its sequences begin in the text. The engine reads
its share of them. So one loop serves all chapters, and their losses can be compared. Serial training runs this loop
with the plain engine (`minidist/engine.py`), in one process, without MPI.
"""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from minidist import checkpoints, contents
from minidist.cli.progress import Progress
from minidist.cli.step_log import StepLog
from minidist.command import Job, about
from minidist.engine import Engine
from minidist.memory import plot
from minidist.memory.pool import NEEDED
from minidist.nn.layers import Tokens, micro_batches
from minidist.nn.sample import generate


class Driver(Protocol):
    """What takes an engine through a step: the engine itself, or a pipeline's schedule."""

    @property
    def engine(self) -> Engine: ...

    def train_batch(self, x: Tokens, y: Tokens) -> float: ...

    def evaluate(self, x: Tokens, y: Tokens) -> float: ...

    def other_counts(self) -> dict[str, Any]: ...


@dataclass
class History:
    """What one rank recorded during training."""

    losses: list[float]  # of the global batch; on rank 0 only
    milliseconds: list[float]  # of each step
    sent: dict[str, dict[str, int]] | None = None  # by phase, in the last step that updated, if any
    tokens: dict[int, float] = field(default_factory=dict)  # in that step, through each unit, by their first sequence
    sent_to: dict[int, int] = field(default_factory=dict)  # bytes, by the receiver's rank in the world, in that step
    received: int = 0  # bytes that arrived in that step
    moved: dict[str, Any] = field(default_factory=dict)  # over this rank's links, by direction and phase, in that step
    held: dict[str, plot.PoolHistory] = field(default_factory=dict)  # by pool, during one step, to be drawn


def train(job: Job, driver: Driver, comm: Any) -> History:
    """The training loop. Raises OverflowError if the gradients overflow at every loss scale."""
    engine, files, steps = driver.engine, job.files, job.training.steps
    drawn = (engine.steps + steps) // 2 if files.memory_plot else None  # amid all schedules
    history = History([], [])
    progress = Progress(steps, shown=comm.rank == 0 and not files.quiet)
    log = StepLog(files.log if comm.rank == 0 else None, goes_on=engine.steps > 0)
    try:
        for step in range(engine.steps, steps):
            begin, updates = time.perf_counter(), engine.updates
            comm.ledger.reset()
            engine.passed.clear()
            for link in engine.links:
                link.reset()
            with plot.recorded(engine.pools) if step == drawn else nullcontext(history.held) as history.held:
                loss = train_step(driver, job, step)
            history.milliseconds.append(1000 * (time.perf_counter() - begin))
            if engine.updates > updates:
                history.sent = comm.ledger.by_phase()  # control messages too, if a step sends any
                history.tokens = engine.tokens_per_unit()
                history.sent_to, history.received = comm.ledger.by_peer(), comm.ledger.received
                history.moved = {way: phases for link in engine.links for way, phases in link.by_phase().items()}
            parts = comm.gather_object(loss)
            if comm.rank == 0:
                history.losses.append(sum(parts))
                progress.update(step + 1, history.losses[-1], history.milliseconds[-1], engine.loss_scale.scale)
                log.write(
                    step=step + 1,
                    loss=history.losses[-1],
                    grad_norm=engine.norm,
                    lr=engine.settings.learning_rate(updates),
                    loss_scale=engine.loss_scale.scale,
                    updated=engine.updates > updates,
                    sent=comm.ledger.by_phase(),  # by this rank, 0
                    peak_bytes=engine.peak_bytes()[NEEDED],  # of its device, since the run began
                    ms=history.milliseconds[-1],
                )
            if files.save and files.save_every and (step + 1) % files.save_every == 0 and step + 1 < steps:
                checkpoints.save(files.save, engine, comm, about(job, comm.size), files.keep)
        engine.settle()
    finally:
        progress.close()
        log.close()
    return history


def train_step(driver: Driver, job: Job, step: int) -> float:
    """Run one step over its global batch; returns this rank's part of the loss."""
    return driver.train_batch(*job.batch(step))


def validate(driver: Driver, job: Job) -> float:
    """This rank's part of the mean loss over a fixed part of the validation text; NaN with --validate 0."""
    if not (batches := job.training.validate):
        return math.nan
    x, y = job.corpus.validation_batch(batches * job.training.batch, job.model.context)
    return sum(driver.evaluate(*part) for part in micro_batches(x, y, batches)) / batches


def print_sample(job: Job, weights: dict[str, Any]) -> None:
    """Print what a model with these weights writes."""
    tokens = generate(job.declared(), weights, job.files.sample, job.model.context, job.training.seed)
    print("\nThe model writes:\n" + job.corpus.decode(tokens))


def step_times(milliseconds: list[float]) -> dict[str, float]:
    """The median and the fastest step time."""
    return {"median": float(np.median(milliseconds or [0.0])), "min": min(milliseconds, default=0.0)}


class NoLedger:
    """The ledger of a rank that sends nothing."""

    received = 0

    def reset(self) -> None: ...

    def by_phase(self) -> dict[str, dict[str, int]]:
        return {}

    def by_peer(self) -> dict[int, int]:
        return {}


class Alone:
    """A communicator with a single rank, as far as the loop needs one."""

    rank, size, ledger, hosts = 0, 1, NoLedger(), ((0,),)

    def gather_object(self, value: Any) -> list[Any]:
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]


if __name__ == "__main__":
    contents.run("train")  # its options: programs/train.py
