"""Local SGD at several intervals H, on the same tokens: what is sent, and what that costs in loss."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from minidist.cli.paths import say_written, write_json, write_output
from minidist.cli.tables import make_table, number, say, show
from minidist.command import Job
from minidist.memory import plot
from minidist.memory.colors import BLUE, DARK, GREY
from minidist.train import Driver, train, validate

INTERVALS = (1, 2, 5, 10, 50)


def compare(job: Job, make: Callable[[Job, Any], Driver], comm: Any) -> int:
    """Train at each interval, and print losses and bytes; returns the exit status."""
    found = dict[int, tuple[float, int]]()  # H: validation loss, and bytes that a rank sent
    for every in INTERVALS:
        found[every] = trained(job, make, comm, every)
        if comm.rank == 0 and not job.files.quiet:
            print(f"H = {every}: validation loss {found[every][0]:.4f}", flush=True)
    if comm.rank > 0:
        return 0
    losses, sent = ({every: loss for every, (loss, _) in found.items()}, {every: n for every, (_, n) in found.items()})
    if job.files.json:
        write_json(job.files.json, {"chapter": job.chapter, "loss": losses, "sent": sent})
    if picture := job.own.sweep:
        write_output(picture, draw(losses, sent, plot.format_of(picture)))
    if not job.files.quiet:
        print_comparison(job, losses, sent)
        say_written()
    return 0


def trained(job: Job, make: Callable[[Job, Any], Driver], comm: Any, every: int) -> tuple[float, int]:
    """The validation loss, on all ranks, and the bytes that this rank sent in all steps together."""
    one = replace(job, own=replace(job.own, every=every), files=replace(job.files, json="-"), units=job.declared())
    driver = make(one, comm)

    def so_far() -> int:
        return sum(n for (kind, *_, unit), n in comm.ledger.ever().items() if (kind, unit) == ("payload", "bytes"))

    before = so_far()
    train(one, driver, comm)
    sent = so_far() - before
    return float(sum(comm.all_gather_object(validate(driver, one)))), sent


def print_comparison(job: Job, losses: dict[int, float], sent: dict[int, int]) -> None:
    print()
    table = make_table(
        left=("H",), right=("averagings", "sent by a rank, bytes", "less", "validation loss", "worse by")
    )
    for every, loss in losses.items():
        less = f"{sent[1] / sent[every]:.3g} times" if sent[every] else ""
        times = number(-(-job.training.steps // every))
        table.add_row(str(every), times, number(sent[every]), less, f"{loss:.4f}", f"{loss - losses[1]:+.4f}")
    show(f"{job.training.steps} steps on the same tokens", table)
    wide = 8 if job.training.precision == "fp64" else 4
    say(
        f"DiLoCo's 500 times counts averagings, of {wide} bytes a parameter here. Data parallelism can send gradients"
        f" of 2 bytes: next to that, 500 times fewer averagings are {500 * 2 // wide} times fewer bytes."
    )


def draw(losses: dict[int, float], sent: dict[int, int], format: str) -> bytes:
    """The loss over what a rank sends."""
    figure, panel = plot.pyplot().subplots(figsize=(6, 3.4), layout="constrained")
    panel.plot([sent[every] / 1e6 for every in losses], [*losses.values()], color=GREY, linewidth=0.8, zorder=1)
    panel.scatter([sent[every] / 1e6 for every in losses], [*losses.values()], color=BLUE, zorder=2)
    for every, loss in losses.items():
        panel.annotate(f"H = {every}", (sent[every] / 1e6, loss), (6, 4), textcoords="offset points", color=DARK)
    panel.set(xscale="log", xlabel="sent by a rank in all steps, MB", ylabel="validation loss")
    panel.spines[["top", "right"]].set_visible(False)
    panel.margins(x=0.15, y=0.15)
    return plot.saved(figure, format)
