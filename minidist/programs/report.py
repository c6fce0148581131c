"""Run a job: train, validate, save, sample, and print the report."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from minidist import checkpoint
from minidist.claims import needs
from minidist.claims.batch import share_claim
from minidist.claims.claim import Claim
from minidist.claims.proof import proof_claims
from minidist.claims.run import Asked, Run
from minidist.claims.screen import print_report
from minidist.claims.witness import print_witness, witness_claims
from minidist.cli.paths import say_written, write_json, write_output
from minidist.command import Job, about, declare, say_at_start
from minidist.engine import Engine
from minidist.memory import plot, witness
from minidist.memory.allocator import keep_freed_memory
from minidist.nn.sample import generate
from minidist.train import Driver, History, step_times, train, validate


@dataclass
class RankReport:
    """What a rank tells rank 0 at the end of a run: `Run` says what each is."""

    validation_loss: float  # its part
    sent: dict[str, dict[str, int]]
    sent_to: dict[int, int]
    received: int
    memory: dict[str, int]
    counted: dict[str, Any]
    below: dict[str, dict[str, int]]  # its device: bytes in each memory there
    moved: dict[str, Any]


def train_and_report(
    job: Job,
    driver: Driver,
    comm: Any,
    claims: Callable[[Run], list[Claim]],
    closing: Callable[[Run], None],
    count: Callable[[], dict[str, Any]] = dict,
) -> int:
    """Train, validate, report; returns the exit status: 1 if a claim does not hold. comm: a Comm, or Alone.

    count: counts other figures on each rank, after training, when nothing can change any more.
    """
    keep_freed_memory()
    engine, options, corpus = driver.engine, job.options, job.corpus
    watching = witness.MemoryWitness(engine.device, engine.host, began=job.began) if options.witness else None
    if options.load:
        checkpoint.load(options.load, engine)
    say_at_start(job, comm.rank, comm.size)
    try:
        history = train(job, driver, comm)
    except OverflowError as error:  # on every rank at the same time
        if comm.rank == 0:
            print(f"minidist: error: {error}", file=sys.stderr)
        return 1
    seen = {"witness": watching.close()} if watching else {}
    mine = RankReport(
        validation_loss=validate(driver, corpus, options),
        sent=history.sent or {},
        sent_to=history.sent_to,
        received=history.received,
        memory=engine.peak_bytes(),
        counted={"tokens": history.tokens, **driver.other_counts(), **count(), **seen},
        below={pool.name: pool.peak for pool in engine.pools if pool is not engine.device},
        moved=history.moved,
    )
    everyone = comm.gather_object(mine)
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
    checked = [*of_every_chapter(run, claims(run)), *witness_claims(run)] if complete else []
    checked += proof_claims(job.proof, run.loss, options.precision) if complete else []
    if options.json != "-":
        with suppress(BrokenPipeError):  # the reader (head, less) has left
            print_report(run, checked, closing, job.proof)
            print_witness(run)
    if options.json:
        write_json(options.json, run.as_json(checked))
    if held and history.losses:
        schedule = vars(options).get("schedule")  # only pipelines have one
        title = f"{job.chapter}{f', {schedule}' * bool(schedule)}: what a rank holds in the course of a step"
        write_output(options.memory_plot, plot.draw(held, title, plot.format_of(options.memory_plot)))
    if options.sample:
        units = declare(options, len(corpus.vocabulary))
        tokens = generate(units, weights, options.sample, options.context, options.seed)
        print("\nThe model writes:\n" + corpus.decode(tokens))
    if options.json != "-":
        plot_of = options.memory_plot if held and history.losses else None
        say_written(checkpoint=options.save, export=options.export, memory_plot=plot_of)
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


def say_needs(job: Job, comm: Any, estimate: needs.Estimate | None) -> None:
    """With --device-memory, before anything is allocated: print how much of it the run needs by the formulas."""
    options = job.options
    if comm.rank > 0 or options.device_memory is None or options.json == "-":
        return
    if estimate is None:
        print(f"What {job.chapter} will need of its devices no formula says.")
        return
    asked = Asked(job.chapter, options, job.layout, len(job.corpus.vocabulary))
    print(needs.in_words(estimate(asked), options.device_memory))


def summarise(job: Job, history: History, everyone: list[RankReport]) -> Run:
    """The run, for the report."""
    of_ranks = {name: [vars(rank)[name] for rank in everyone] for name in vars(everyone[0])}
    return Run(
        chapter=job.chapter,
        options=job.options,
        layout=job.layout,
        vocabulary=len(job.corpus.vocabulary),
        loss=history.losses,
        validation_loss=sum(of_ranks.pop("validation_loss")),
        unigram_entropy=job.corpus.unigram_entropy(),
        step_ms=step_times(history.milliseconds),
        **of_ranks,
    )
