"""Run a job: train, validate, save, sample, and print the report."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Protocol

from minidist.checkpoints import checkpoint
from minidist.claims import needs
from minidist.claims.batch import share_claim
from minidist.claims.claim import Claim
from minidist.claims.described import described
from minidist.claims.letters import Letters
from minidist.claims.proof import proof_claims
from minidist.claims.run import Run, run_of
from minidist.claims.screen import print_report
from minidist.claims.witness import print_witness, witness_claims
from minidist.cli.paths import say_written, write_json, write_output
from minidist.command import Job, about, say_at_start
from minidist.engine import Engine
from minidist.formulas.needs import Estimate
from minidist.memory import plot, witness
from minidist.memory.allocator import keep_freed_memory
from minidist.train import Driver, History, print_sample, step_times, train, validate


class Promises(Protocol):
    """What a chapter says about its runs."""

    def claims(self, run: Run) -> list[Claim]: ...

    @property
    def whole_run(self) -> bool: ...

    def letters(self, run: Run) -> Letters: ...

    def closing(self, run: Run) -> None: ...

    def published(self) -> None: ...

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
    chapter: Promises, job: Job, driver: Driver, comm: Any, count: Callable[[], dict[str, Any]] = dict
) -> int:
    """Train, validate, report; returns the exit status: 1 if a claim does not hold. comm: a Comm, or Alone.

    count: counts other figures on each rank, after training, when nothing can change any more.
    """
    keep_freed_memory()
    engine, files = driver.engine, job.files
    watching = witness.MemoryWitness(engine.device, engine.host, began=job.began) if files.witness else None
    if files.load:
        checkpoint.load(files.load, engine)
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
        checkpoint.save(files.save, engine, comm, about(job, comm.size), files.keep)
    if files.export:
        checkpoint.export(files.export, engine, comm, about(job, comm.size), files.names)
    weights = checkpoint.weights(engine, writer=comm.rank == 0) if files.sample else {}
    if comm.rank > 0:
        return comm.broadcast_object(None)  # what rank 0 returns
    run = summarise(job, history, everyone)
    complete = history.sent is not None  # a step that overflows sends less than the papers say
    checked = [*of_every_chapter(run, chapter.claims(run)), *witness_claims(run)] if complete else []
    checked += proof_claims(job.proof, run.loss, job.training.precision) if complete else []
    if not files.quiet:
        with suppress(BrokenPipeError):  # the reader (head, less) has left
            print_report(run, checked, chapter.letters(run), chapter.whole_run, job.proof)
            if checked:
                chapter.closing(run)
            if files.published:
                print()
                chapter.published()
            print_witness(run)
    if files.json:
        write_json(files.json, run.as_json(checked))
    if files.memory_plot and held and history.losses:
        title = f"{chapter.title(job)}: what a rank holds in the course of a step"
        write_output(files.memory_plot, plot.draw(held, title, plot.format_of(files.memory_plot)))
    if files.sample:
        print_sample(job, weights)
    if not files.quiet:
        plot_of = files.memory_plot if held and history.losses else None
        say_written(checkpoint=files.save, export=files.export, memory_plot=plot_of)
    if not complete and history.losses:
        print(
            f"minidist: error: no step updated the parameters, so nothing was checked: {why_not(engine)}",
            file=sys.stderr,
        )
    return comm.broadcast_object(0 if all(claim.holds for claim in checked) and (complete or not history.losses) else 1)


def why_not(engine: Engine) -> str:
    """Why no step has updated: all of them overflowed."""
    scale = engine.loss_scale.scale
    if engine.scaled and scale > engine.loss_scale.minimum:
        return (
            f"the loss scale is still coming down, and is {scale:g} now: use more --steps, or begin with a smaller one"
        )
    return "lower --lr"


def of_every_chapter(run: Run, claims: list[Claim]) -> list[Claim]:
    """A chapter's claims, and the one that all chapters make; [] if the chapter has none, like serial training."""
    return [*claims, share_claim(run, [counted["tokens"] for counted in run.counted])] if claims else []


def say_needs(job: Job, comm: Any, estimate: Estimate | None) -> None:
    """With --device-memory, before anything is allocated: print how much of it the run needs by the formulas."""
    capacity = job.files.device_memory
    if comm.rank > 0 or capacity is None or job.files.quiet:
        return
    if estimate is None:
        print(f"What {job.chapter} will need of its devices no formula says.")
        return
    asked = described(job.chapter, job, job.layout, job.vocabulary)
    print(needs.in_words(estimate(asked), capacity))


def summarise(job: Job, history: History, everyone: list[RankReport]) -> Run:
    """The run, for the report."""
    of_ranks = {each.name: [getattr(rank, each.name) for rank in everyone] for each in fields(RankReport)}
    return run_of(
        described(job.chapter, job, job.layout, job.vocabulary),
        clip=job.training.clip,
        loss=history.losses,
        validation_loss=sum(of_ranks.pop("validation_loss")),
        unigram_entropy=job.corpus.unigram_entropy(),
        step_ms=step_times(history.milliseconds),
        **of_ranks,
    )
