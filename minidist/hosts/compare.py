"""Which parallelism across which link: layouts of four ranks, run on hosts, next to what their links allow."""

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from minidist import Stopped
from minidist.cli.paths import say_written, write_output
from minidist.cli.progress import StatusLine
from minidist.cli.tables import number, print_table, say
from minidist.hosts.network import Network, across, bits, step_of
from minidist.memory.plot import format_of, pyplot, saved
from minidist.mpi import output
from minidist.system.files import temporary_folder

FOUR, PAIRS = partial(Network, 4), partial(Network, 2, 2)  # hosts with one rank, or two with two
LAYOUTS = {
    "data parallelism": (FOUR, "data_parallel"),
    "- while computing": (FOUR, "data_parallel --reduce overlap"),
    "ZeRO-1": (FOUR, "zero1"),
    "ZeRO-2": (FOUR, "zero2"),
    "ZeRO-3": (FOUR, "zero3"),
    "FSDP without prefetch": (FOUR, "fsdp --backward-prefetch none"),
    "FSDP": (FOUR, "fsdp --forward-prefetch"),
    "hybrid sharding, 2 hosts x 2": (PAIRS, "fsdp --strategy hybrid_shard --ranks-per-host 2 --forward-prefetch"),
    "local SGD, 5 steps": (FOUR, "local_sgd --every 5"),
    "pipeline": (FOUR, "pipeline"),
    "context": (FOUR, "context_parallel"),
    "experts": (FOUR, "expert_parallel --experts 4"),
    "tensor": (FOUR, "tensor_parallel"),
    "3D, tensor axis within hosts": (PAIRS, "parallel3d --tp 2 --pp 2"),
    "3D, tensor axis across hosts": (partial(PAIRS, spread=True), "parallel3d --tp 2 --pp 2"),
}
RUN = "--steps 7 --validate 0 --no-prove --precision fp32"  # the first step is left out
RATES = ("1gbit", "200mbit", "50mbit")


def run(picture: str | None) -> int:
    """Run all layouts at each rate, print the table, and draw it if a file is given."""
    found: dict[str, list[tuple[float, float]]] = {}  # layout -> at each rate, seconds of a step, and bytes across
    status = StatusLine(shown=True)
    for i, (name, (network, line)) in enumerate(LAYOUTS.items()):
        status.show(f"on hosts: {line}", i / len(LAYOUTS))
        found[name] = [measure(network(rate=rate), line) for rate in RATES]
    status.close()
    print_table("A step of a tiny model on four ranks, on hosts joined by links of a rate", *table_of(found))
    say(
        "KB: of a step across a host's link, in its busier direction, as minidist counts them. Below each rate: ms of a"
        " step, and how many times as long that is as these bytes take at the rate."
    )
    slow = {name: values[-1][0] for name, values in found.items()}
    worse, within = slow["tensor"] / slow["data parallelism"], slow["3D, tensor axis within hosts"]
    say(
        f"At {RATES[-1]}, tensor parallelism takes {worse:.1f} times as long as data parallelism, and the 3D layout"
        f" {slow['3D, tensor axis across hosts'] / within:.1f} times as long if its tensor axis crosses hosts."
    )
    if picture:
        write_output(picture, draw(found, format_of(picture)))
        say_written(plot=picture)
    return 0


def table_of(found: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[str, list[str], list[list[str]]]:
    """The arguments of `print_table`: the first heading, the others, and the rows."""
    rows = []
    for name, values in found.items():
        cells = [
            f"{1e3 * took:,.0f}  {took * bits(rate) / 8 / n:5.1f}"
            for rate, (took, n) in zip(RATES, values, strict=True)
        ]
        rows.append([name, number(round(values[0][1] / 1e3)), *cells])
    return "layout", ["KB", *RATES], rows


def draw(found: Mapping[str, Sequence[tuple[float, float]]], format: str) -> bytes:
    """A picture: the time of each layout's step at each rate, over the least time that its bytes take."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    limits = [[8 * values[i][1] / bits(rate) for values in found.values()] for i, rate in enumerate(RATES)]
    for i, rate in enumerate(RATES):
        axes.loglog(limits[i], [values[i][0] for values in found.values()], "o", label=rate)
    for name, limit in zip(found, limits[-1], strict=True):
        axes.annotate(name, (limit, found[name][-1][0]), (4, 3), textcoords="offset points", fontsize=6)
    ends = [pick(map(pick, limits)) for pick in (min, max)]
    axes.plot(ends, ends, color="black", linewidth=0.8, label="the link's limit")
    axes.set_xlabel("the bytes of a step at the link's rate, in seconds")
    axes.set_ylabel("a step, in seconds")
    axes.legend()
    return saved(figure, format)


def measure(network: Network, line: str) -> tuple[float, float]:
    """Seconds of a step, and bytes over the busiest link."""
    with temporary_folder() as folder:
        words = [sys.executable, "-m", *shlex.split(f"minidist.{line} {RUN}")]
        status, errors, records = network.run(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if status or not records:
        raise Stopped(f"python -m minidist.{line} on hosts: status {status}: {output.in_a_line(errors[-300:])}")
    return step_of(records)[0], across(network, records)
