"""The training loop of every chapter, and serial training, the truth to which the others are compared.

    python -m minidist.train
    python -m minidist.train --data my.txt --steps 2000 --sample 500

Serial training needs no MPI. The options are the same in every chapter, and so are data, model and losses.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np

from minidist import UsageError, checkpoint, data
from minidist.claims import needs
from minidist.claims.claim import Claim
from minidist.claims.files import write_json, write_output
from minidist.claims.published import print_zero_closing
from minidist.claims.run import Asked, Run
from minidist.claims.tables import print_report
from minidist.claims.witness import print_witness, witness_claims
from minidist.cli.options import Parser, in_one_process
from minidist.cli.progress import Progress
from minidist.command import VALIDATION_BATCHES, Job, Options, about, declare, parser, prepare
from minidist.engine import Engine, Settings
from minidist.memory import plot, witness
from minidist.memory.allocator import keep_freed_memory
from minidist.mpi.run import run
from minidist.nn.layers import Unit
from minidist.nn.sample import generate
from minidist.nn.tensor import Array

MakeEngine = Callable[[list[Unit], Settings, Any, Options], Engine]
Closing = Callable[[Run], None]


@dataclass
class History:
    """What one rank saw of the training."""

    losses: list[float]  # of the global batch, on rank 0
    milliseconds: list[float]  # of each step
    sent: dict[str, dict[str, int]] | None = None  # by phase, in the last step that updated; None: every one overflowed
    sent_to: dict[int, int] = field(default_factory=dict)  # bytes, by the receiver's rank in the world, in that step
    received: int = 0  # bytes that arrived in that step
    moved: dict[str, Any] = field(default_factory=dict)  # over this rank's links in that step, by direction and phase
    held: dict[str, plot.History] = field(default_factory=dict)  # by pool, in the course of one step, to be drawn


class Driver(Protocol):
    """What takes an engine through a step: the engine itself, or a pipeline's schedule."""

    def train_batch(self, x: Array, y: Array) -> float: ...

    def evaluate(self, x: Array, y: Array) -> float: ...

    def counted(self) -> dict[str, Any]: ...


def run_job(
    job: Job,
    engine: Engine,
    comm: Any,
    claims: Callable[[Run], list[Claim]],
    closing: Closing = print_zero_closing,
    driver: Driver | None = None,
    look: Callable[[], dict[str, Any]] = dict,
) -> int:
    """Train, validate, report; the exit status: 1 if a claim does not hold. comm: a Comm, or Alone.

    look: what else is to be counted on each rank, once training is over and nothing of it can change any more.
    """
    keep_freed_memory()
    driver = driver or engine
    options, corpus = job.options, job.corpus
    watching = witness.Witness(engine.device, engine.host, began=job.began) if options.witness else None
    if options.load:
        checkpoint.load(options.load, engine)
        say_differences(job, comm)
    try:
        history = train(job, engine, driver, comm)
    except OverflowError as error:  # on every rank alike
        if comm.rank == 0:
            print(f"minidist: error: {error}", file=sys.stderr)
        return 1
    seen = {"witness": watching.close()} if watching else {}
    validation, memory = validate(driver, corpus, options), engine.memory()
    below = {pool.name: pool.peak for pool in engine.pools if pool is not engine.device}
    counted = {**driver.counted(), **look(), **seen}
    wire = history.sent or {}, history.sent_to, history.received
    everyone = comm.gather_object((validation, *wire, memory, counted, below, history.moved))
    held = comm.gather_object(history.held) if options.memory_plot else None
    if options.save:
        checkpoint.save(options.save, engine, comm, about(job, comm.size), options.keep)
    if options.export:
        checkpoint.export(options.export, engine, comm, about(job, comm.size), options.names)
    weights = checkpoint.weights(engine, writer=comm.rank == 0) if options.sample else {}
    if comm.rank > 0:
        return comm.broadcast_object(None)  # what rank 0 returns
    run = summarise(job, history, everyone)
    complete = history.sent is not None  # a step that overflows sends less than the papers say
    checked = [*claims(run), *witness_claims(run)] if complete else []
    if options.json != "-":
        with suppress(BrokenPipeError, SystemExit):  # the reader (head, less) has left; rich says so by SystemExit
            print_report(run, checked, closing)
            print_witness(run)
    if options.json:
        write_json(options.json, run.as_json(checked))
    if held and history.losses:
        schedule = vars(options).get("schedule")  # of pipelines
        title = f"{job.chapter}{f', {schedule}' * bool(schedule)}: what a rank holds in the course of a step"
        write_output(options.memory_plot, plot.draw(held, title, plot.format_of(options.memory_plot)))
    if options.sample:
        units = declare(options, len(corpus.vocabulary))
        tokens = generate(units, weights, options.sample, options.context, options.seed)
        print("\nThe model writes:\n" + corpus.decode(tokens))
    if not complete and history.losses:
        print("minidist: error: no step updated the parameters, so nothing was checked: lower --lr", file=sys.stderr)
    return comm.broadcast_object(0 if all(claim.holds for claim in checked) and (complete or not history.losses) else 1)


def say_needs(job: Job, comm: Any, estimate: needs.Estimate | None) -> None:
    """With --device-memory, before anything is allocated: what formulas say will be needed of it."""
    options = job.options
    if comm.rank > 0 or options.device_memory is None or options.json == "-":
        return
    if estimate is None:
        print(f"What {job.chapter} will need of its devices no formula says.")
        return
    asked = Asked(job.chapter, options, comm.size, len(job.corpus.vocabulary))
    print(needs.in_words(estimate(asked), options.device_memory))


def say_differences(job: Job, comm: Any) -> None:
    """In a line each, in what a run that goes on is not the run that was saved."""
    found, text = checkpoint.opened(job.options.load), about(job, comm.size)["text"]
    for difference in checkpoint.differences(found, job.settings.seed, text) if comm.rank == 0 else ():
        print(f"minidist: --load {job.options.load} was {difference}", file=sys.stderr)


def train(job: Job, engine: Engine, driver: Driver, comm: Any) -> History:
    """The training loop. Raises OverflowError if the gradients overflow at every loss scale."""
    options = job.options
    drawn = (engine.steps + options.steps) // 2 if options.memory_plot else None  # when no schedule begins or ends
    history = History([], [])
    progress = Progress(options.steps, shown=comm.rank == 0 and options.json != "-")
    try:
        for step in range(engine.steps, options.steps):
            begin, updates = time.perf_counter(), engine.updates
            comm.ledger.reset()
            for link in engine.links:
                link.reset()
            with plot.recorded(engine.pools) if step == drawn else nullcontext(history.held) as history.held:
                loss = train_step(driver, job.corpus, options, step)
            history.milliseconds.append(1000 * (time.perf_counter() - begin))
            if engine.updates > updates:
                history.sent = comm.ledger.by_phase()  # control messages too, if a step should send any
                history.sent_to, history.received = comm.ledger.by_peer(), comm.ledger.received
                history.moved = {way: phases for link in engine.links for way, phases in link.by_phase().items()}
            parts = comm.gather_object(loss)
            if comm.rank == 0:
                history.losses.append(sum(parts))
                progress.update(step + 1, history.losses[-1], history.milliseconds[-1], engine.loss_scale.scale)
            if options.save_every and (step + 1) % options.save_every == 0 and step + 1 < options.steps:
                checkpoint.save(options.save, engine, comm, about(job, comm.size), options.keep)
        engine.settle()
    finally:
        progress.close()
    return history


def summarise(job: Job, history: History, everyone: list[Any]) -> Run:
    """The run, for the report.

    everyone: of each rank, its part of the validation loss, what it sent, received and held, what else it counted,
    and what it held below its device and moved there and back.
    """
    validation, sent, sent_to, received, memory, counted, below, moved = zip(*everyone, strict=True)
    return Run(
        chapter=job.chapter,
        options=job.options,
        ranks=len(everyone),
        vocabulary=len(job.corpus.vocabulary),
        loss=history.losses,
        validation_loss=sum(validation),
        unigram_entropy=job.corpus.unigram_entropy(),
        step_ms={
            "median": statistics.median(history.milliseconds or [0.0]),
            "min": min(history.milliseconds, default=0.0),
        },
        sent=list(sent),
        sent_to=list(sent_to),
        received=list(received),
        memory=list(memory),
        counted=list(counted),
        below=list(below),
        moved=list(moved),
    )


def train_step(driver: Driver, corpus: data.Corpus, options: Options, step: int) -> float:
    """One step over the step's global batch; this rank's part of its loss."""
    return driver.train_batch(*corpus.batch(options.batch, options.context, key=(options.seed, step)))


def validate(driver: Driver, corpus: data.Corpus, options: Options) -> float:
    """This rank's part of the mean loss over a fixed part of the validation text."""
    x, y = corpus.validation_batch(VALIDATION_BATCHES * options.batch, options.context)
    parts = zip(np.split(x, VALIDATION_BATCHES), np.split(y, VALIDATION_BATCHES), strict=True)
    return sum(driver.evaluate(*part) for part in parts) / VALIDATION_BATCHES


# ---- entry points ----------------------------------------------------------------------------------------------------


def main(
    chapter: str,
    doc: str | None,
    make_engine: MakeEngine,
    claims: Callable[[Run], list[Claim]],
    add_options: Callable[[Parser], None] = lambda parser: None,
    closing: Closing = print_zero_closing,
    check: Callable[[Job], None] = lambda job: None,
    estimate: needs.Estimate | None = None,
) -> NoReturn:
    """Run a chapter on the ranks that mpirun started. check: raises UsageError for what its own options cannot be.
    estimate: what it will need, if formulas say so."""
    made = parser(doc or "", chapter)  # python -OO drops docstrings
    add_options(made)

    def checked(comm: Any) -> Job:
        job = prepare(made, sys.argv[1:], comm.size)
        check(job)
        return job

    def work(comm: Any, job: Job) -> int:
        say_needs(job, comm, estimate)
        return run_job(job, make_engine(job.units, job.settings, comm, job.options), comm, claims, closing)

    run(prepare=checked, main=work)


class NoLedger:
    """Nothing is sent, nothing to count."""

    received = 0

    def reset(self) -> None: ...

    def by_phase(self) -> dict[str, dict[str, int]]:
        return {}

    def by_peer(self) -> dict[int, int]:
        return {}


class Alone:
    """What the loop asks of a communicator, for the only rank there is."""

    rank, size, ledger = 0, 1, NoLedger()

    def gather_object(self, value: Any) -> list[Any]:
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]


def serial() -> int:
    """Train on one process, without MPI; the exit status."""
    launched = int(os.environ.get("PMI_SIZE") or os.environ.get("OMPI_COMM_WORLD_SIZE") or 1)
    if launched > 1:
        raise UsageError("this is serial training: leave mpirun away, or take minidist.data_parallel")
    job = prepare(parser(__doc__ or "", "train"), sys.argv[1:], ranks=1)
    say_needs(job, Alone(), needs.of_data_axis(0))
    return run_job(job, Engine(job.units, job.settings), Alone(), lambda run: [])


if __name__ == "__main__":
    sys.exit(in_one_process(serial))
