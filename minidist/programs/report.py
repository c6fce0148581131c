"""What rank 0 says of a run: before it, what it will need; after it, the claims, next to what all ranks counted."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from minidist.claims import needs
from minidist.claims.batch import share_claim
from minidist.claims.claim import Claim
from minidist.claims.described import described
from minidist.claims.promises import Promises
from minidist.claims.proof import proof_claims
from minidist.claims.run import Run, run_of
from minidist.claims.screen import print_report
from minidist.claims.witness import print_witness, witness_claims
from minidist.cli.paths import say_written, write_json, write_output
from minidist.command import Job
from minidist.engine import Engine
from minidist.formulas.needs import Estimate
from minidist.memory import plot
from minidist.train import History, print_sample, step_times


class Reported(Protocol):
    """What a chapter says about its runs."""

    @property
    def promises(self) -> Promises: ...

    def closing(self, run: Run) -> None: ...

    def title(self, job: Job) -> str: ...


def report(
    chapter: Reported,
    job: Job,
    engine: Engine,
    history: History,
    everyone: Sequence[Mapping[str, Any]],
    held: Any,
    weights: dict[str, Any],
) -> int:
    """Check and print what a run did; returns the exit status: 1 if a claim does not hold.

    chapter: a `Chapter`. everyone: what each rank counted, by field of `Run`. held: each rank's memory during a step,
    to be drawn. weights: the model's, to write a sample with."""
    files = job.files
    run = summarise(job, history, everyone)
    promises: Promises = chapter.promises
    complete = history.sent is not None  # a step that overflows sends less than the papers say
    checked = list[Claim]()
    if complete:
        checked = promises.claims(run)
        if checked:  # serial training has none
            checked = [*checked, share_claim(run, [counted["tokens"] for counted in run.counted])]
        checked = [*checked, *witness_claims(run), *proof_claims(job.proof, run.loss, job.training.precision)]
    if not files.quiet:
        with suppress(BrokenPipeError):  # the reader (head, less) has left
            print_report(run, checked, promises.letters(run), promises.whole_run, job.proof)
            if checked:
                chapter.closing(run)
            if files.published:
                print()
                promises.published()
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
    return 0 if all(claim.holds for claim in checked) and (complete or not history.losses) else 1


def why_not(engine: Engine) -> str:
    """Why no step has updated: all of them overflowed."""
    scale = engine.loss_scale.scale
    if engine.scaled and scale > engine.loss_scale.minimum:
        return (
            f"the loss scale is still coming down, and is {scale:g} now: use more --steps, or begin with a smaller one"
        )
    return "lower --lr"


def say_needs(job: Job, estimate: Estimate | None) -> None:
    """Before anything is allocated: print how much of --device-memory the run needs by the formulas."""
    if estimate is None:
        print(f"What {job.chapter} will need of its devices no formula says.")
        return
    asked = described(job.chapter, job, job.layout, job.vocabulary)
    print(needs.in_words(estimate(asked), job.files.device_memory or 0))


def summarise(job: Job, history: History, everyone: Sequence[Mapping[str, Any]]) -> Run:
    """The run, for the report."""
    of_ranks = {name: [rank[name] for rank in everyone] for name in everyone[0]}
    return run_of(
        described(job.chapter, job, job.layout, job.vocabulary),
        clip=job.training.clip,
        loss=history.losses,
        validation_loss=sum(of_ranks.pop("validation_loss")),
        unigram_entropy=job.corpus.unigram_entropy(),
        step_ms=step_times(history.milliseconds),
        **of_ranks,
    )
