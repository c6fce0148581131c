"""Run a job: train, validate, save; and on rank 0 report (`report.py`)."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minidist import checkpoints
from minidist.command import Job, about, say_at_start
from minidist.memory import witness
from minidist.memory.allocator import keep_freed_memory
from minidist.train import Driver, train, validate

if TYPE_CHECKING:
    from minidist.programs.report import Reported


def train_and_report(
    chapter: "Reported", job: Job, driver: Driver, comm: Any, count: Callable[[], dict[str, Any]] = dict
) -> int:
    """Train, validate, report; returns the exit status: 1 if a claim does not hold. comm: a Comm, or Alone.

    count: counts other figures on each rank, after training, when nothing can change any more."""
    keep_freed_memory()
    engine, files = driver.engine, job.files
    watching = witness.MemoryWitness(engine.device, engine.host, began=job.began) if files.witness else None
    if files.load:
        checkpoints.load(files.load, engine)
    say_at_start(job, comm.rank, comm.size)
    try:
        history = train(job, driver, comm)
    except OverflowError as error:  # on every rank at the same time
        if comm.rank == 0:
            print(f"minidist: error: {error}", file=sys.stderr)
        return 1
    seen = {"witness": watching.close()} if watching else {}
    mine = {  # fields of `Run`, which says what each is
        "validation_loss": validate(driver, job),  # this rank's part
        "sent": history.sent or {},
        "sent_to": history.sent_to,
        "host": next(i for i, ranks in enumerate(comm.hosts) if comm.rank in ranks),
        "received": history.received,
        "memory": engine.peak_bytes(),
        "counted": {"tokens": history.tokens, **driver.other_counts(), **count(), **seen},
        "below": {pool.name: pool.peak for pool in engine.pools if pool is not engine.device},
        "moved": history.moved,
    }
    everyone = comm.gather_object(mine)
    held = comm.gather_object(history.held) if files.memory_plot else None
    if files.save:
        checkpoints.save(files.save, engine, comm, about(job, comm.size), files.keep)
    if files.export:
        checkpoints.export(files.export, engine, comm, about(job, comm.size), files.names)
    weights = checkpoints.weights(engine, writer=comm.rank == 0) if files.sample else {}
    if comm.rank > 0:
        return comm.broadcast_object(None)  # what rank 0 returns
    from minidist.programs.report import report  # with claims, formulas and papers: other ranks load none

    return comm.broadcast_object(report(chapter, job, engine, history, everyone, held, weights))
