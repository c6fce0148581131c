"""Prove a run's numbers before it begins: its own layout, on a small batch, and the same steps in one process."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minidist import checkpoints
from minidist.claims import proof as proofs
from minidist.claims.described import described
from minidist.claims.proof import Proof, Size
from minidist.command import Job
from minidist.engine import Engine
from minidist.memory import kernel
from minidist.nn.precision import PRECISIONS
from minidist.programs.serial import PHASE, Serial, units_of


def prove(comm: Any, job: Job, make: Callable[[Job, Any], Any], serial: Serial) -> Proof | None:
    """What is true of the run's numbers; None if no proof is wanted, or nothing is trained. All ranks must call it. At
    its end nothing is left of what it has made.

    make: the chapter's own layout, of a job. serial: its serial form."""
    training, load = job.training, job.files.load
    found = checkpoints.opened(load) if load else None
    begun = found.state["steps"] if found else 0
    if training.prove is False or training.steps <= begun:
        return None
    asked = described(job.chapter, job, job.layout, job.vocabulary)
    size = proofs.size_of(asked, serial.steps, serial.micro_batches, serial.shorter)
    if found and found.added:
        return Proof(size, "the checkpoint has what each rank keeps for itself, and one process does not")
    if training.prove is None and (reason := proofs.why_left_out(asked, size)):
        return Proof(size, reason)
    with comm.phase(PHASE, closed=True):
        made = compare(comm, job, shrunk(job, size, begun, serial.own or job.own), size, make, serial)
        comm.broadcast_object(None)  # until rank 0 has compared, the others sleep: it needs the core
    if job.began:  # --witness
        kernel.forget_most()
        job.began = kernel.pages()
    return made


def compare(
    comm: Any, job: Job, small: Job, size: Size, make: Callable[[Job, Any], Any], serial: Serial
) -> Proof | None:
    """Take the steps on all ranks, then on rank 0 alone, and compare; returns None on the other ranks."""

    def loaded(driver: Any) -> Any:
        if job.files.load:
            checkpoints.load(job.files.load, driver.engine)
        return driver

    begun = small.training.steps - size.steps
    drawn = [
        job.corpus.batch(size.micro_batches * size.rows, size.positions, key=(job.training.seed, begun + step))
        for step in range(size.steps)
    ]
    try:
        taken = proofs.take_steps(loaded(make(small, comm)), drawn, serial.plain)
    except OverflowError as error:  # on every rank: a checkpoint's weights are not finite
        return Proof(size, str(error))
    if comm.rank > 0:
        proofs.send(comm, taken)
        return None
    keeps_all = replace(small.settings, recompute="none", tiled=False)
    engine = loaded(serial.make(replace(small, units=units_of(job, serial), settings=keeps_all)))
    first = first_loss(engine, job)
    alone = proofs.take_steps(engine, drawn, serial.plain)
    made = proofs.compare(size, proofs.receive(comm, taken), alone, job.layout, serial.plain)
    made.first = first
    return made


def shrunk(job: Job, size: Size, begun: int, own: Any) -> Job:
    """The same run in float64, with a small batch, few steps, and memories without limits. Its learning rate is
    moderate, and changes with each update."""
    settings = replace(
        job.settings,
        precision=PRECISIONS["fp64"],
        learning_rate=lambda update: 1e-3 * (1 + update % 3),
        accumulate=size.micro_batches,
        capacity=None,
        host_capacity=None,
        disk_capacity=None,
    )
    training = replace(
        job.training,
        precision="fp64",
        grad_dtype="stored",
        batch=size.micro_batches * size.rows,
        accumulate=size.micro_batches,
        steps=begun + size.steps,
    )
    files = replace(job.files, save_every=None, json="-")
    layout, units = replace(job.layout, micro_batches=size.micro_batches), job.declared()
    return replace(job, training=training, files=files, own=own, settings=settings, layout=layout, units=units)


def first_loss(engine: Engine, job: Job) -> float:
    """The loss of the run's first step, with all its micro-batches and its dropout."""
    x, y = job.batch(engine.steps)
    total, n = 0.0, job.training.accumulate
    for i, (of_x, of_y) in enumerate(zip(np.split(x, n), np.split(y, n), strict=True)):
        batch = engine.share_of(of_x, of_y, key=(job.training.seed, engine.steps, i))
        loss, _ = engine.run(engine.segments, batch.tokens, batch, keep=False)
        total += (float(loss) + sum(batch.losses)) / n
    return total
