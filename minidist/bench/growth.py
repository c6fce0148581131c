"""How messages, bytes, time and memory of a rank grow with the number of ranks, next to what formulas promise.

    python -m minidist.bench.growth                 1 to 1,024 ranks: the better part of an hour
    python -m minidist.bench.growth --most 64       a few minutes

Each point is a run of a chapter in one process, one step of a tiny model. The batch grows with the ranks, or the
sequence does (ring attention), or the number of experts. A point is the busiest rank, or the fullest. Time is the
processor time of the whole process, its start included, divided by the ranks. Growth is kept in growth.json and drawn
in growth.svg: marks are what was counted, lines are the formulas. Needs matplotlib.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from minidist import UsageError, find_clone, how_to_install, how_to_make
from minidist.claims.reports import count_here
from minidist.cli.options import Parser, at_least, in_one_process
from minidist.cli.tables import make_table, number, show
from minidist.colors import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, RED
from minidist.files import write_whole
from minidist.papers import collectives, switch

POINTS, PICTURE = Path(__file__).with_name("growth.json"), Path(__file__).with_name("growth.svg")
RANKS = (1, 4, 16, 64, 256, 1024)
S, H, CONTEXT, FLATS = 4096, 16, 8, 3  # elements of the ring; width, positions, and Flats of the model
SMALL = f"--steps 1 --layers 1 --width {H} --heads 2 --validate 0 --no-prove"
LADDER = f"{SMALL} --context {CONTEXT} --batch {{n}}"


class Series(NamedTuple):
    """A way to divide work, on any number of ranks."""

    line: str  # of its chapter
    phases: tuple[str, ...]  # the messages that are meant; none: all
    messages: Callable[[int], int]  # the formula, of N
    nbytes: Callable[[int, Any], float]  # the formula, of N and what the report expects
    color: str


def promised(n: int, report: Any) -> float:
    """What the chapter's own claims expect a rank to send; the norm of gradients, a number from each rank, apart."""
    expected = {claim["claim"]: claim["expected"] for claim in report["claims"]}
    return float(expected["all that is sent"] + expected.get("norm of the gradient", 0))


def exchanged(n: int, report: Any) -> float:
    """Rows to experts elsewhere and back, in a forward and again in the backward, each of h elements of two bytes."""
    going, coming = switch.rows_of_capacity(Fraction(CONTEXT), n, 1, 1.0, n)
    return 2 * 2 * H * (going[0] + coming[0])


def around(n: int, report: Any) -> float:
    """Keys and values in the forward and in the backward, and their gradients: 2ch elements of two bytes each time."""
    return 3 * 2 * 2 * CONTEXT * H * (n - 1)


EXCHANGES = tuple(f"{way} {direction}" for way in ("dispatch", "combine") for direction in ("forward", "backward"))
AROUND = ("keys and values forward", "keys and values backward", "gradients of keys and values")
SERIES = {
    "ring all-reduce": Series(
        f"ring --size {S} --only 'all-reduce ring'", (), lambda n: 2 * (n - 1),
        lambda n, report: 4 * max(collectives.ring_all_reduce(S, n).sent), DARK,
    ),
    "data parallelism": Series(f"data_parallel {LADDER}", (), lambda n: 2 * FLATS * (n - 1), promised, GREY),
    "ZeRO-1": Series(f"zero1 {LADDER}", (), lambda n: (2 * FLATS + 1) * (n - 1), promised, BLUE),
    "ZeRO-2": Series(f"zero2 {LADDER}", (), lambda n: (2 * FLATS + 1) * (n - 1), promised, ORANGE),
    "ZeRO-3": Series(f"zero3 {LADDER}", (), lambda n: (3 * FLATS + 1) * (n - 1), promised, GREEN),
    "expert all-to-all": Series(
        f"expert_parallel {LADDER} --experts {{n}} --top 1 --capacity 1", EXCHANGES, lambda n: 4 * (n - 1), exchanged,
        RED,
    ),
    "ring attention": Series(
        f"context_parallel {SMALL} --context {{positions}} --batch 1 --positions contiguous", AROUND,
        lambda n: 3 * (n - 1), around, PURPLE,
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


def print_points(points: Sequence[dict[str, Any]]) -> None:
    table = make_table(left=("",), right=("ranks", "messages", "formula", "bytes", "formula", "ms", "bytes held"))
    for i, of in enumerate(points):
        name = of["series"] if i == 0 or points[i - 1]["series"] != of["series"] else ""
        counts = (of["ranks"], of["messages"], of["promised messages"], of["bytes"], of["promised bytes"])
        table.add_row(name, *map(number, counts), f"{of['ms']:.0f}", number(of["memory"]) if of["memory"] else "")
    show("A rank, by the number of ranks: what it sends, how long it computes, what it holds", table)


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


def main(arguments: Sequence[str] = ()) -> None:
    made = Parser("bench.growth", __doc__ or "")
    made.add_argument("--most", type=at_least(1), metavar="N", default=RANKS[-1], help="measure up to N ranks")
    options = made.parse_args(arguments)
    if not find_clone():
        raise UsageError(f"growth is kept in a clone: {how_to_make('setup')}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(f"drawing needs matplotlib: {how_to_install('lessons')}") from None
    points = []
    for name in SERIES:
        for n in (n for n in RANKS if n <= options.most):
            began = time.monotonic()
            points.append(measure(name, n))
            print(f"{name}, N = {n}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    write_whole(str(POINTS), (json.dumps(points, indent=1) + "\n").encode())
    draw(points, PICTURE)
    print_points(points)
    print(f"written: {POINTS}, {PICTURE}")


if __name__ == "__main__":
    sys.exit(in_one_process(lambda: main(sys.argv[1:])))
