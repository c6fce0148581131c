"""Run a job: train, validate, save; and on rank 0 report (`report.py`)."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from minidist import checkpoints
from minidist.command import Job, about, say_at_start
from minidist.memory import witness
from minidist.memory.allocator import keep_freed_memory
from minidist.train import Driver, train, validate

if TYPE_CHECKING:  # ranks that print nothing load no claims
    from minidist.claims.promises import Promises
    from minidist.claims.run import Run


class Reported(Protocol):
    """What a chapter says about its runs."""

    @property
    def promises(self) -> "Promises": ...

    def closing(self, run: "Run") -> None: ...

    def title(self, job: Job) -> str: ...


@dataclass
class RankReport:
    """What a rank tells rank 0 at the end of a run: `Run` says what each is."""

    validation_loss: float  # its part
    sent: dict[str, dict[str, int]]
    sent_to: dict[int, int]
    host: int
    received: int
    memory: dict[str, int]
    counted: dict[str, Any]
    below: dict[str, dict[str, int]]  # its device: bytes in each memory there
    moved: dict[str, Any]


def train_and_report(
    chapter: Reported, job: Job, driver: Driver, comm: Any, count: Callable[[], dict[str, Any]] = dict
) -> int:
    """Train, validate, report; returns the exit status: 1 if a claim does not hold. comm: a Comm, or Alone.

    count: counts other figures on each rank, after training, when nothing can change any more.
    """
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
    mine = RankReport(
        validation_loss=validate(driver, job),
        sent=history.sent or {},
        sent_to=history.sent_to,
        host=next(i for i, ranks in enumerate(comm.hosts) if comm.rank in ranks),
        received=history.received,
        memory=engine.peak_bytes(),
        counted={"tokens": history.tokens, **driver.other_counts(), **count(), **seen},
        below={pool.name: pool.peak for pool in engine.pools if pool is not engine.device},
        moved=history.moved,
    )
    everyone = comm.gather_object(mine)
    held = comm.gather_object(history.held) if files.memory_plot else None
    if files.save:
        checkpoints.save(files.save, engine, comm, about(job, comm.size), files.keep)
    if files.export:
        checkpoints.export(files.export, engine, comm, about(job, comm.size), files.names)
    weights = checkpoints.weights(engine, writer=comm.rank == 0) if files.sample else {}
    if comm.rank > 0:
        return comm.broadcast_object(None)  # what rank 0 returns
    report = importlib.import_module("minidist.programs.report")  # by name: with claims, formulas and papers
    return comm.broadcast_object(report.report(chapter, job, engine, history, everyone, held, weights))
