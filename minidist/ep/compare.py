"""A mixture next to the dense model of the same active size, on the same tokens: several seeds, mean and error."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from minidist.claims.run import model_of
from minidist.cli.paths import say_written, write_json
from minidist.cli.tables import make_table, number, say, show
from minidist.command import Job, declare
from minidist.train import Driver, train, validate


def compare(job: Job, make: Callable[[Job, Any], Driver], comm: Any) -> int:
    """Train both models with each seed, and print their validation losses; returns the exit status."""
    options, losses = job.options, {0: list[float](), job.options.experts: list[float]()}
    for seed in range(options.against_dense):
        for experts, found in losses.items():
            found.append(validation_loss(job, make, comm, seed, experts))
            if comm.rank == 0 and options.json != "-":
                print(f"seed {seed}, {f'{experts} experts' if experts else 'dense'}: {found[-1]:.4f}", flush=True)
    if comm.rank > 0:
        return 0
    dense, mixed = losses.values()
    if options.json:
        write_json(options.json, {"chapter": job.chapter, "dense": dense, "experts": mixed})
    if options.json != "-":
        print_comparison(job, dense, mixed)
        say_written()
    return 0


def validation_loss(job: Job, make: Callable[[Job, Any], Driver], comm: Any, seed: int, experts: int) -> float:
    """Of a model with this many experts, or none, after a training of its own; on all ranks."""
    options = Namespace(**{**vars(job.options), "seed": seed, "experts": experts, "json": "-"})
    units = declare(options, len(job.corpus.vocabulary))
    one = replace(job, options=options, units=units, settings=replace(job.settings, seed=seed))
    driver = make(one, comm)
    train(one, driver, comm)
    return float(sum(comm.all_gather_object(validate(driver, job.corpus, options))))


def print_comparison(job: Job, dense: list[float], mixed: list[float]) -> None:
    model = model_of(job.options, len(job.corpus.vocabulary))
    dense_size = model.active() - model.layers * model.experts * model.h  # without routers
    less = [a - b for a, b in zip(dense, mixed, strict=True)]
    print()
    table = make_table(left=("seed",), right=("dense", f"{job.options.experts} experts, top 1", "dense - experts"))
    for seed, row in enumerate(zip(dense, mixed, less, strict=True)):
        table.add_row(str(seed), *(f"{loss:.4f}" for loss in row))
    table.add_row("mean", *(f"{mean(column):.4f}" for column in (dense, mixed, less)))
    if len(less) > 1:
        errors = (stdev(column) / len(column) ** 0.5 for column in (dense, mixed, less))
        table.add_row("standard error", *(f"{error:.4f}" for error in errors))
    show(f"Validation loss after {job.options.steps} steps on the same tokens", table)
    say(
        f"The mixture has {number(model.parameters())} parameters, and a token goes through {number(model.active())} of"
        f" them; the dense model has {number(dense_size)}, because it has no routers."
    )
