"""How messages, bytes, time and memory of a rank grow with the number of ranks, next to what formulas promise.

    python -m minidist.bench.growth                 1 to 64 ranks: a few minutes
    python -m minidist.bench.growth --most 1024     the better part of an hour
    python -m minidist.bench.growth --table         measures nothing: the table and the picture of what is kept

Each point is a run of a chapter in one process, one step of a tiny model. The batch grows with the ranks, or the
sequence does (ring attention), or the number of experts. A point is the busiest rank, or the fullest. Time is the
processor time of the whole process, its start included, divided by the ranks. Points replace those of as many ranks in
growth.json; all of them are drawn in growth.svg and stand in README: marks are what was counted, lines are the
formulas. What may take more than half an hour of processor time is left out, and the table says so. Needs matplotlib.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from minidist.bench.picture import check_clone
from minidist.bench.results import replace_table
from minidist.claims.reports import count_here
from minidist.cli.fields import flag, read, whole
from minidist.cli.options import Parser, in_one_process
from minidist.cli.tables import make_table, number, show
from minidist.memory.colors import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, RED
from minidist.papers import collectives, switch
from minidist.system.files import write_whole

POINTS, PICTURE = Path(__file__).with_name("growth.json"), Path(__file__).with_name("growth.svg")
README = Path(__file__).with_name("README.md")
RANKS = (1, 4, 16, 64, 256, 1024)
SECONDS = 1800  # of processor time: what may take longer is left out
S, H, CONTEXT, FLATS = 4096, 16, 8, 3  # elements of the ring; width, positions, and Flats of the model
SMALL = f"--steps 1 --layers 1 --width {H} --heads 2 --validate 0 --no-prove --timeout 0"  # many may be silent long
LADDER = f"{SMALL} --context {CONTEXT} --batch {{n}}"


class Series(NamedTuple):
    """A way to divide work, on any number of ranks."""

    line: str  # of its chapter
    phases: tuple[str, ...]  # the messages that are meant; none: all
    formulas: tuple[str, str]  # of messages and of bytes, in words
    messages: Callable[[int], int]  # the formula, of N
    nbytes: Callable[[int, Any], float]  # the formula, of N and what the report expects
    color: str


def promised(n: int, report: Any) -> float:
    """What the chapter's own claims expect a rank to send; the norm of gradients, a number from each rank, apart."""
    expected = {claim["claim"]: claim["expected"] for claim in report["claims"]}
    return float(expected["total sent"] + expected.get("norm of the gradient", 0))


def exchanged(n: int, report: Any) -> float:
    """Rows to experts elsewhere and back, in a forward and again in the backward, each of h elements of two bytes."""
    going, coming = switch.rows_of_capacity(Fraction(CONTEXT), n, 1, 1.0, n)
    return 2 * 2 * H * (going[0] + coming[0])


def around(n: int, report: Any) -> float:
    """Keys and values in the forward and in the backward, and their gradients: 2ch elements of two bytes each time."""
    return 3 * 2 * 2 * CONTEXT * H * (n - 1)


EXCHANGES = tuple(f"{way} {direction}" for way in ("dispatch", "combine") for direction in ("forward", "backward"))
AROUND = ("keys and values forward", "keys and values backward", "gradients of keys and values")
TWICE = "2·2Ψ(N-1)/N + 8(N-1)"
SERIES = {
    "ring all-reduce": Series(
        f"ring --size {S} --only 'all-reduce ring'", (), ("2(N-1)", "4·2S(N-1)/N"),
        lambda n: 2 * (n - 1), lambda n, report: 4 * max(collectives.ring_all_reduce(S, n).sent), DARK,
    ),
    "data parallelism": Series(
        f"data_parallel {LADDER}", (), ("2u(N-1)", "2·2Ψ(N-1)/N"), lambda n: 2 * FLATS * (n - 1), promised, GREY
    ),
    "ZeRO-1": Series(
        f"zero1 {LADDER}", (), ("(2u+1)(N-1)", TWICE), lambda n: (2 * FLATS + 1) * (n - 1), promised, BLUE
    ),
    "ZeRO-2": Series(
        f"zero2 {LADDER}", (), ("(2u+1)(N-1)", TWICE), lambda n: (2 * FLATS + 1) * (n - 1), promised, ORANGE
    ),
    "ZeRO-3": Series(
        f"zero3 {LADDER}", (), ("(3u+1)(N-1)", "2·3Ψ(N-1)/N + 8(N-1)"),
        lambda n: (3 * FLATS + 1) * (n - 1), promised, GREEN,
    ),
    "expert all-to-all": Series(
        f"expert_parallel {LADDER} --experts {{n}} --top 1 --capacity 1", EXCHANGES, ("4(N-1)", "2·4h⌈c/N⌉(N-1)"),
        lambda n: 4 * (n - 1), exchanged, RED,
    ),
    "ring attention": Series(
        f"context_parallel {SMALL} --context {{positions}} --batch 1 --positions contiguous", AROUND,
        ("3(N-1)", "2·6ch(N-1)"), lambda n: 3 * (n - 1), around, PURPLE,
    ),
}  # fmt: skip


def measure(name: str, n: int) -> dict[str, Any]:
    """A point: what was counted, and what the formulas give."""
    series, began = SERIES[name], os.times()
    report = count_here(n, series.line.format(n=n, positions=CONTEXT * n))
    ended = os.times()
    spent = ended.children_user + ended.children_system - began.children_user - began.children_system
    if report["chapter"] == "ring":
        found = {claim["claim"]: claim["counted"] for claim in report["claims"]}
        messages, nbytes, held = found["calls of the busiest rank"], found["sent by the busiest rank"], None
    else:
        totals = [[of for phase, of in sent.items() if phase in (series.phases or sent)] for sent in report["sent"]]
        messages, nbytes = (max(sum(of[count] for of in rank) for rank in totals) for count in ("messages", "bytes"))
        held = max(rank["all but workspace"] for rank in report["memory"])
    return {
        **{"series": name, "ranks": n, "messages": messages, "bytes": nbytes, "ms": 1e3 * spent / n, "memory": held},
        **{"promised messages": series.messages(n), "promised bytes": series.nbytes(n, report)},
    }


def table(points: Sequence[dict[str, Any]]) -> str:
    """A Markdown table: a row for each series, with its formulas; for each number of ranks, what a rank sends, how long
    it computes, and what it holds."""
    counts = [n for n in RANKS if n > 1]
    lines = [["a rank", "messages", "bytes", *(f"N = {number(n)}" for n in counts)], ["---"] * (3 + len(counts))]
    for name, series in SERIES.items():
        mine = {of["ranks"]: of for of in points if of["series"] == name}
        cells = [cell(mine[n]) if n in mine else left_out(mine.get(n // 4)) for n in counts]
        lines.append([name, *series.formulas, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(of: dict[str, Any]) -> str:
    """Messages, bytes, milliseconds, and bytes held."""
    held = f", {number(of['memory'])} B" if of["memory"] else ""
    return f"{number(of['messages'])}, {number(of['bytes'])} B, {of['ms']:.0f} ms{held}"


def seconds_after(of: dict[str, Any]) -> float:
    """Processor time of four times the ranks, at most: each sends to, or meets, every other."""
    return 16 * of["ms"] * of["ranks"] / 1e3


def left_out(before: dict[str, Any] | None) -> str:
    """If the point with a quarter of the ranks says that this one takes too long: how long."""
    if before is None or seconds_after(before) <= SECONDS:
        return ""
    return f"left out: up to {seconds_after(before) / 60:.0f} minutes"


def print_points(points: Sequence[dict[str, Any]]) -> None:
    rows = make_table(left=("",), right=("ranks", "messages", "formula", "bytes", "formula", "ms", "bytes held"))
    for i, of in enumerate(points):
        name = of["series"] if i == 0 or points[i - 1]["series"] != of["series"] else ""
        counts = (of["ranks"], of["messages"], of["promised messages"], of["bytes"], of["promised bytes"])
        rows.add_row(name, *map(number, counts), f"{of['ms']:.0f}", number(of["memory"]) if of["memory"] else "")
    show("A rank, by the number of ranks: what it sends, how long it computes, what it holds", rows)


def draw(points: Sequence[dict[str, Any]], path: Path) -> None:
    """Four panels on logarithmic scales: marks are counted, lines are formulas."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = path.stem
    figure, panels = pyplot.subplots(2, 2, figsize=(9, 6.4), layout="constrained", sharex=True)
    titles = {"messages": "messages sent", "bytes": "bytes sent", "ms": "processor time, ms", "memory": "bytes held"}
    for axes, (key, title) in zip(panels.flat, titles.items(), strict=True):
        for (name, series), mark in zip(SERIES.items(), "osD^vPX", strict=True):
            mine = [of for of in points if of["series"] == name and of[key]]
            ranks = [of["ranks"] for of in mine]
            style = {"color": series.color, "linewidth": 1.2}
            axes.plot(ranks, [of[key] for of in mine], mark, color=series.color, markersize=5, label=name)
            axes.plot(ranks, [of.get(f"promised {key}", of[key]) for of in mine], **style)
        axes.set(xscale="log", yscale="log", title=f"{title}, of a rank")
        axes.set_xticks(RANKS, [number(n) for n in RANKS])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GREY, alpha=0.3, linewidth=0.5)
    for axes in panels[1]:
        axes.set_xlabel("ranks")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def measure_all(most: int) -> list[dict[str, Any]]:
    """Points of all series, up to this number of ranks, and without those that may take too long."""
    points = list[dict[str, Any]]()
    for name in SERIES:
        for n in (n for n in RANKS if n <= most):
            if n > 1 and left_out(points[-1]):
                print(f"{name}, N = {n}: {left_out(points[-1])}", file=sys.stderr, flush=True)
                break
            points.append(measure(name, n))
            took = points[-1]["ms"] * n / 1e3
            print(f"{name}, N = {n}: {took:.0f} s of processor time", file=sys.stderr, flush=True)
    return points


def merge(kept: Sequence[dict[str, Any]], measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was kept, with what was measured now in place of the same points, in the order of the series."""
    found = {(of["series"], of["ranks"]): of for of in (*kept, *measured)}
    return [found[name, n] for name in SERIES for n in RANKS if (name, n) in found]


@dataclass(frozen=True, kw_only=True)
class GrowthOptions:
    most: int = whole("N", "measure up to N ranks (default: 64)", 64)
    table: bool = flag("measure nothing: table and picture of what is kept")


def main(arguments: Sequence[str] = ()) -> None:
    options = read(Parser("bench.growth", __doc__ or ""), GrowthOptions, arguments)
    check_clone("growth is kept in a clone", "lessons")
    measured = [] if options.table else measure_all(options.most)
    points = merge(json.loads(POINTS.read_text(encoding="utf-8")), measured)
    write_whole(str(POINTS), (json.dumps(points, indent=1) + "\n").encode())
    write_whole(str(README), replace_table(README.read_text(encoding="utf-8"), "a rank", table(points)).encode())
    draw(points, PICTURE)
    print_points(points)
    print(f"written: {POINTS}, {PICTURE}, {README}")


if __name__ == "__main__":
    sys.exit(in_one_process(lambda: main(sys.argv[1:])))
