"""Which parallelism across which link: layouts of four ranks, run on hosts, next to what their links allow."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from minidist import Stopped
from minidist.cli.progress import StatusLine
from minidist.cli.tables import make_table, number, say, show
from minidist.hosts.network import Network, across, bits, step_of
from minidist.mpi import output
from minidist.system.files import temporary_folder

FOUR, PAIRS = partial(Network, 4), partial(Network, 2, 2)  # hosts with one rank, or two with two
LAYOUTS = {
    "data parallelism": (FOUR, "data_parallel"),
    "  while computing": (FOUR, "data_parallel --reduce overlap"),
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


def run(rates: Sequence[str] = RATES) -> int:
    """Run all layouts at each rate, and print the table."""
    table = make_table(("layout",), ("KB across", *(f"{rate}: ms, ratio" for rate in rates)), narrow=True)
    status = StatusLine(shown=True)
    for i, (name, (network, line)) in enumerate(LAYOUTS.items()):
        cells: list[str] = []
        nbytes = 0.0
        for j, rate in enumerate(rates):
            status.show(f"{rate}: {line}", (i + j / len(rates)) / len(LAYOUTS))
            took, nbytes = measure(network(rate=rate), line)
            limit = 8 * nbytes / bits(rate)
            cells.append(f"{1e3 * took:,.0f} {took / limit:6.2f}" if limit else f"{1e3 * took:,.0f}      -")
        table.add_row(name, number(round(nbytes / 1e3)), *cells)
    status.close()
    show("A step of a tiny model on four ranks, on hosts joined by links of each rate", table)
    say(
        "KB across: in a step, over a host's link, in its busier direction, as minidist counts them. ratio: the time of"
        " a step, as a multiple of what these bytes take at the link's rate."
    )
    return 0


def measure(network: Network, line: str) -> tuple[float, float]:
    """Seconds of a step, and bytes over the busiest link."""
    with temporary_folder() as folder:
        words = [sys.executable, "-m", *shlex.split(f"minidist.{line} {RUN}")]
        status, errors, records = network.run(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if status or not records:
        raise Stopped(f"python -m minidist.{line} on hosts: status {status}: {output.in_a_line(errors[-300:])}")
    return step_of(records)[0], across(network, records)
