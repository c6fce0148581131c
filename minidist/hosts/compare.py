"""Which parallelism across which link: layouts of four ranks, run on hosts, next to what their links allow."""

import math
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

from minidist import Stopped
from minidist.claims.described import described
from minidist.cli.paths import say_written, write_output
from minidist.cli.progress import StatusLine
from minidist.cli.tables import number, print_table, say
from minidist.hosts.network import Network, across, bits, step_of
from minidist.memory.plot import format_of, pyplot, saved
from minidist.mpi import output
from minidist.plan.ties import SAME
from minidist.plan.time import Cluster, slowest, step_time
from minidist.programs.chapter import find
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
    "ZeRO++, 2 hosts x 2": (PAIRS, "zeropp --ranks-per-host 2"),
    "Muon, whole matrices": (FOUR, "muon"),
    "signs of the momentum": (FOUR, "compression --with sign --freeze-step 1"),
    "top-k, 1 %": (FOUR, "compression --with topk --optimizer sgd --lr 0.1"),
    "low rank, 2": (FOUR, "compression --with lowrank"),
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
NO_FORMULA = ("expert_parallel", "zeropp", "muon", "compression", "local_sgd")  # of their time, in `plan`


def run(picture: str | None) -> int:
    """Run all layouts at each rate, print the table, and draw it if a file is given."""
    found: dict[str, list[tuple[float, float]]] = {}  # layout -> at each rate, seconds of a step, and bytes across
    status = StatusLine(shown=True)
    for i, (name, (network, line)) in enumerate(LAYOUTS.items()):
        status.show(f"on hosts: {line}", i / len(LAYOUTS))
        found[name] = [measure(network(rate=rate), line) for rate in RATES]
    status.close()
    rows = []
    for name, values in found.items():
        pairs = zip(RATES, values, strict=True)
        cells = [f"{1e3 * took:,.0f}  {took * bits(rate) / 8 / n:5.1f}" for rate, (took, n) in pairs]
        rows.append([name, number(round(values[0][1] / 1e3)), *cells])
    title = "A step of a tiny model on four ranks, on hosts joined by links of a rate"
    print_table(title, "layout", ["KB", *RATES], rows)
    say(
        "KB: of a step across a host's link, in its busier direction, as minidist counts them. Below each rate: ms of a"
        " step, and how many times as long that is as these bytes take at the rate."
    )
    if picture:
        write_output(picture, draw(found, format_of(picture)))
        say_written(plot=picture)
    slow = {name: values[-1][0] for name, values in found.items()}
    worse, within = slow["tensor"] / slow["data parallelism"], slow["3D, tensor axis within hosts"]
    say(
        f"At {RATES[-1]}, tensor parallelism takes {worse:.1f} times as long as data parallelism, and the 3D layout"
        f" {slow['3D, tensor axis across hosts'] / within:.1f} times as long if its tensor axis crosses hosts."
    )
    took, nbytes = found["data parallelism"][0]
    if (computing := took - 8 * nbytes / bits(RATES[0])) > 0:
        say_order(slow, expected(computing))
    return 0


def expected(computing: float) -> dict[str, float]:
    """Seconds of a step at the slowest rate, by `plan`'s model of time, for the layouts that it knows. computing: what
    data parallelism's step takes in addition to its messages, at the fastest rate; it says how fast processors are."""
    asked = {}
    for name, (make, line) in LAYOUTS.items():
        chapter, *options = shlex.split(f"{line} {RUN}")
        if chapter not in NO_FORMULA:
            job = find(chapter).job(options, make().ranks)
            layout = replace(job.layout, parts=job.layout.parts or (range(job.model.layers + 2),))
            asked[name] = make(), described(chapter, job, layout, job.vocabulary)
    ranks = Cluster(4, 0, flops=1, across=bits(RATES[-1]) / 8, ceiling=1)
    work = slowest(ranks, asked["data parallelism"][1])[0].work / computing
    return {
        name: step_time(replace(ranks, flops=work, per_host=1 if at.spread else at.ranks_per_host), of)
        for name, (at, of) in asked.items()
    }


def say_order(measured: Mapping[str, float], expected: Mapping[str, float]) -> None:
    """Print what `plan` expects, and which layouts it puts in another order than measured. Pairs that tie are left out:
    its model of time hides all that can be hidden."""
    pairs = [(a, b) for a, b in combinations(expected, 2) if not math.isclose(expected[a], expected[b], rel_tol=SAME)]
    wrong = [(a, b) for a, b in pairs if (measured[a] < measured[b]) != (expected[a] < expected[b])]
    rows = "; ".join(f"{name} {1e3 * expected[name]:,.0f}" for name in sorted(expected, key=expected.__getitem__))
    say(f"plan, told how long data parallelism takes at {RATES[0]}, expects these ms at {RATES[-1]}: {rows}.")
    often = "; ".join(f"{name} ({n})" for name, n in Counter(sum(wrong, ())).most_common(3))
    where = f" Most often in the others: {often}." if wrong else ""
    say(f"{len(pairs) - len(wrong)} of {len(pairs)} pairs are in the measured order.{where}")


def draw(found: Mapping[str, Sequence[tuple[float, float]]], format: str) -> bytes:
    """A picture: the time of each layout's step at each rate, over the least time that its bytes take."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    limits = [[8 * values[i][1] / bits(rate) for values in found.values()] for i, rate in enumerate(RATES)]
    for i, rate in enumerate(RATES):
        axes.loglog(limits[i], [values[i][0] for values in found.values()], "o", label=rate)
    near: dict[int, list[tuple[float, str]]] = {}  # names that would be written over each other, at the slowest rate
    for name, limit in zip(found, limits[-1], strict=True):
        near.setdefault(round(8 * math.log10(limit)), []).append((limit, name))
    for (limit, name), *others in near.values():
        text = name + f" and {len(others)} more" * bool(others)
        at = limit, found[name][-1][0]
        axes.annotate(text, at, (-6, 3), textcoords="offset points", fontsize=6, horizontalalignment="right")
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
