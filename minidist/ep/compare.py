"""A mixture next to the dense model of the same active size, on the same tokens: several seeds, mean and error."""

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from statistics import mean, stdev
from typing import Any

from minidist.claims.described import model_of
from minidist.cli.paths import say_written, write_json, write_output
from minidist.cli.tables import make_table, number, say, show
from minidist.command import Job
from minidist.memory import plot
from minidist.memory.colors import BLUE, DARK, GREY
from minidist.train import Driver, train, validate


def compare(job: Job, make: Callable[[Job, Any], Driver], comm: Any) -> int:
    """Train both models with each seed, and print their validation losses; returns the exit status."""
    files, own, losses = job.files, job.own, {0: list[float](), job.own.mixture.experts: list[float]()}
    for seed in range(own.against_dense):
        for experts, found in losses.items():
            found.append(validation_loss(job, make, comm, seed, experts))
            if comm.rank == 0 and not files.quiet:
                print(f"seed {seed}, {f'{experts} experts' if experts else 'dense'}: {found[-1]:.4f}", flush=True)
    if comm.rank > 0:
        return 0
    dense, mixed = losses.values()
    if files.json:
        write_json(files.json, {"chapter": job.chapter, "dense": dense, "experts": mixed})
    if picture := own.against_plot:
        write_output(picture, draw(dense, mixed, own.mixture.experts, plot.format_of(picture)))
    if not files.quiet:
        print_comparison(job, dense, mixed)
        say_written()
    return 0


def validation_loss(job: Job, make: Callable[[Job, Any], Driver], comm: Any, seed: int, experts: int) -> float:
    """Train a model with this many experts, or none; returns its validation loss, on all ranks."""
    own = replace(job.own, mixture=replace(job.own.mixture, experts=experts))
    training, files = replace(job.training, seed=seed), replace(job.files, json="-")
    one = replace(job, own=own, training=training, files=files, settings=replace(job.settings, seed=seed))
    one.units = one.declared()
    driver = make(one, comm)
    train(one, driver, comm)
    return float(sum(comm.all_gather_object(validate(driver, one))))


def print_comparison(job: Job, dense: list[float], mixed: list[float]) -> None:
    model = model_of(job.model, job.vocabulary, job.own.mixture.experts, job.own.mixture.top)
    dense_size = model.active() - model.layers * model.experts * model.h  # without routers
    less = [a - b for a, b in zip(dense, mixed, strict=True)]
    print()
    table = make_table(left=("seed",), right=("dense", f"{job.own.mixture.experts} experts, top 1", "dense - experts"))
    for seed, row in enumerate(zip(dense, mixed, less, strict=True)):
        table.add_row(str(seed), *(f"{loss:.4f}" for loss in row))
    table.add_row("mean", *(f"{mean(column):.4f}" for column in (dense, mixed, less)))
    if len(less) > 1:
        table.add_row("standard error", *(f"{standard_error(column):.4f}" for column in (dense, mixed, less)))
    show(f"Validation loss after {job.training.steps} steps on the same tokens", table)
    say(
        f"The mixture has {number(model.parameters())} parameters, and a token goes through {number(model.active())} of"
        f" them; the dense model has {number(dense_size)}, because it has no routers."
    )


def standard_error(found: list[float]) -> float:
    """The standard error of the mean of two numbers or more."""
    return float(stdev(found) / len(found) ** 0.5)


def draw(dense: list[float], mixed: list[float], experts: int, format: str) -> bytes:
    """Both losses of each seed, joined; how much lower the mixture's is; and the means with their standard errors."""
    from matplotlib import pyplot as plt

    figure, (losses, less) = plt.subplots(1, 2, figsize=(7, 3.2), width_ratios=(2, 1), layout="constrained")
    lower = [a - b for a, b in zip(dense, mixed, strict=True)]
    for pair in zip(dense, mixed, strict=True):
        losses.plot((0, 1), pair, color=GREY, marker="o", markersize=4, linewidth=0.8)
    less.plot([0] * len(lower), lower, color=GREY, marker="o", markersize=4, linestyle="none")
    for panel, place, side, column in ((losses, -0.12, -1, dense), (losses, 1.12, 1, mixed), (less, 0.15, 1, lower)):
        error = standard_error(column) if len(column) > 1 else 0
        panel.errorbar(place, mean(column), error, color=BLUE, marker="D", markersize=5, capsize=4)
        words, shifted = f"{mean(column):.4f}\n± {error:.4f}", (8 * side, 0)
        align = {"ha": "left" if side > 0 else "right", "va": "center", "textcoords": "offset points"}
        panel.annotate(words, (place, mean(column)), shifted, fontsize=8, color=DARK, **align)
        panel.spines[["top", "right"]].set_visible(False)
    losses.set(xlim=(-0.6, 1.6), xticks=(0, 1), xticklabels=("dense", f"{experts} experts, top 1"))
    losses.set_ylabel("validation loss")
    less.set(xlim=(-0.4, 1.2), xticks=(), ylabel="dense - experts")
    less.axhline(0, color=DARK, linewidth=0.8)
    figure.suptitle(f"{len(dense)} seeds (gray); mean and standard error (blue)", fontsize=9)
    picture = BytesIO()
    figure.savefig(picture, format=format, dpi=110)
    plt.close(figure)
    return picture.getvalue()
