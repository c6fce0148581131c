"""The paper's five configurations (table 3), the largest model that trains in each, and its table 2."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from minidist import UsageError
from minidist.claims.described import described
from minidist.claims.published import print_zero_table_2
from minidist.cli.paths import write_json, write_output
from minidist.cli.tables import mark, number, print_table, say
from minidist.command import Job
from minidist.formulas.asked import Asked
from minidist.formulas.residual import needs
from minidist.memory import plot
from minidist.mpi.comm import Comm
from minidist.papers import zero


class Configuration(NamedTuple):
    """A row of table 3. All have constant buffers and one room for checkpoints (CB + MD)."""

    name: str
    words: str
    zero: int
    activations: str


CONFIGURATIONS = (
    Configuration("C1", "P_os", 1, "device"),
    Configuration("C2", "P_os, P_a", 1, "partitioned"),
    Configuration("C3", "P_os+g", 2, "device"),
    Configuration("C4", "P_os+g, P_a", 2, "partitioned"),
    Configuration("C5", "P_os+g, P_a+cpu", 2, "host"),
)
USUAL_MEMORY = "4MB"  # a device on which some layers fit
MOST_LAYERS = 128  # where a search ends
ALONE = ("arena_plot", "memory_plot", "save", "load", "export", "sample", "witness", "scattered", "sequence_parallel")


def check(options: Namespace, d: int) -> None:
    """Raise UsageError for options that do not fit --configurations or --arena-plot. d: ranks that share a batch."""
    of = "--configurations" if options.configurations is not None else "--arena-plot" if options.arena_plot else ""
    if of and options.batch // options.accumulate % d:
        needed = d * options.accumulate * (options.batch // (d * options.accumulate) + 1)
        raise UsageError(
            f"{of}: all ranks must hold the same, so {d} shares of the batch be equal: use --batch {needed}"
        )
    if options.arena_plot and options.precision in ("mixed", "bf16"):
        raise UsageError(
            "--arena-plot: a device computes in the stored precision, without float32 copies: use --precision fp32"
        )
    if options.arena_plot:
        plot.check("--arena-plot", options.arena_plot)
    if options.configurations is None:
        return
    for option in ALONE:
        if vars(options)[option]:
            named = option.replace("_", "-")
            raise UsageError(f"--configurations trains many models, a step of each: leave out --{named}")
    if options.configurations:
        plot.check("--configurations", options.configurations)


def find_largest(works: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` that works, if every smaller one also works; 0: none does."""
    low, high = 0, 1  # low works; high may not
    while high <= most and works(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low


def search(comm: Comm, job: Job, trains: Callable[[Comm, Job, int], bool]) -> int:
    """Find the most layers in each configuration by training, on all ranks; print and draw them on rank 0. Returns the
    exit status: 1 if a formula gives another number."""
    found = []
    for each in CONFIGURATIONS:
        options = Namespace(**{**vars(job.options), "zero": each.zero, "activations": each.activations})
        asked = replace(job, options=options)
        layers = find_largest(partial(trains, comm, asked), MOST_LAYERS)
        found.append((each, layers, count_promised_layers(asked, comm.size), parameters(asked, comm.size, layers)))
    if comm.rank == 0:
        report(job, comm.size, found)
    return 0 if all(layers == predicted for _, layers, predicted, _ in found) else 1


def make_run(job: Job, ranks: int, layers: int) -> Asked:
    """A run with this number of layers."""
    options = Namespace(**{**vars(job.options), "layers": layers})
    return described(job.chapter, options, job.layout, len(job.corpus.vocabulary))


def count_promised_layers(job: Job, ranks: int) -> int:
    """How many layers fit by the formulas."""
    return find_largest(lambda n: needs(make_run(job, ranks, n))[0].total <= job.options.device_memory, MOST_LAYERS)


def parameters(job: Job, ranks: int, layers: int) -> int:
    return make_run(job, ranks, layers).model.parameters() if layers else 0


def at_most(layers: int) -> str:
    """The number of layers that a search has found, in words."""
    return f"{layers} or more" if layers == MOST_LAYERS else str(layers)


def report(job: Job, ranks: int, found: list[tuple[Configuration, int, int, int]]) -> None:
    """Write the table, the picture, and the report for machines."""
    options = job.options
    title = f"The most layers that train in {number(options.device_memory)} bytes a device"
    if options.json != "-":
        rows = [
            (f"{each.name}  {each.words}", at_most(predicted), at_most(layers), number(psi), mark(layers == predicted))
            for each, layers, predicted, psi in found
        ]
        print_table(title, "ZeRO table 3", ("by formula", "trained", "parameters", ""), rows)
        printed = ", ".join(f"{name} {figure.printed}B" for name, figure in zero.FIGURE_8.items())
        say(f"The paper's largest, with MP = 16 (figure 8): {printed} parameters.")
        print()
        print_zero_table_2()
    if options.configurations:
        bars = {each.name: psi for each, _, _, psi in found}
        write_output(options.configurations, plot.draw_bars(bars, title, plot.format_of(options.configurations)))
    if options.json:
        reported = [
            {"name": each.name, "zero": each.zero, "activations": each.activations, "layers": layers,
             "promised": predicted, "parameters": psi}
            for each, layers, predicted, psi in found
        ]  # fmt: skip
        write_json(options.json, {"chapter": job.chapter, "ranks": ranks, "configurations": reported})
