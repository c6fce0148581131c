"""The paper's five configurations (table 3), the largest model that trains in each, and its table 2."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

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
MOST_LAYERS = 128  # where a search ends


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


def search(comm: Comm, job: Job, fits: Callable[[Comm, Job], bool]) -> int:
    """Find the most layers in each configuration by training, on all ranks; print and draw them on rank 0. Returns the
    exit status: 1 if a formula gives another number."""
    found = []
    for each in CONFIGURATIONS:
        asked = replace(job, own=replace(job.own, zero=each.zero, activations=each.activations))
        layers = find_largest(lambda n, asked=asked: fits(comm, deepened(asked, n)), MOST_LAYERS)  # type: ignore[misc]
        psi = run_of(deepened(asked, layers)).model.parameters() if layers else 0
        found.append((each, layers, count_promised_layers(asked), psi))
    if comm.rank == 0:
        report(job, comm.size, found)
    return 0 if all(layers == predicted for _, layers, predicted, _ in found) else 1


def deepened(job: Job, layers: int) -> Job:
    """The job of a model with this number of layers."""
    return replace(job, model=replace(job.model, layers=layers))


def run_of(job: Job) -> Asked:
    return described(job.chapter, job, job.layout, job.vocabulary)


def count_promised_layers(job: Job) -> int:
    """How many layers fit by the formulas."""
    capacity = job.files.device_memory or 0
    return find_largest(lambda n: needs(run_of(deepened(job, n)))[0].total <= capacity, MOST_LAYERS)


def at_most(layers: int) -> str:
    """The number of layers that a search has found, in words."""
    return f"{layers} or more" if layers == MOST_LAYERS else str(layers)


def report(job: Job, ranks: int, found: list[tuple[Configuration, int, int, int]]) -> None:
    """Write the table, the picture, and the report for machines."""
    files, picture = job.files, job.own.configurations
    title = f"The most layers that train in {number(files.device_memory or 0)} bytes a device"
    if not files.quiet:
        rows = [
            (f"{each.name}  {each.words}", at_most(predicted), at_most(layers), number(psi), mark(layers == predicted))
            for each, layers, predicted, psi in found
        ]
        print_table(title, "ZeRO table 3", ("by formula", "trained", "parameters", ""), rows)
        printed = ", ".join(f"{name} {figure.printed}B" for name, figure in zero.FIGURE_8.items())
        say(f"The paper's largest, with MP = 16 (figure 8): {printed} parameters.")
        print()
        print_zero_table_2()
    if picture:
        bars = {each.name: psi for each, _, _, psi in found}
        write_output(picture, plot.draw_bars(bars, title, plot.format_of(picture)))
    if files.json:
        reported = [
            {"name": each.name, "zero": each.zero, "activations": each.activations, "layers": layers,
             "promised": predicted, "parameters": psi}
            for each, layers, predicted, psi in found
        ]  # fmt: skip
        write_json(files.json, {"chapter": job.chapter, "ranks": ranks, "configurations": reported})
