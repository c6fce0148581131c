"""The pictures and tables of lesson 04: results of the ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from minidist.classroom.notebook.drawing import canvas, show
from minidist.memory.colors import BLUE, DARK, GREY, LIGHT, ORANGE, RANKS, RED
from minidist.papers import collectives

ALGORITHMS = {"server": RED, "tree": ORANGE, "ring": BLUE}
COMPUTED = {
    "ring": collectives.ring_all_reduce,
    "tree": collectives.tree_all_reduce,
    "server": collectives.server_all_reduce,
}
FORMULAS = {
    "server": r"server: $(N-1)\,S$",
    "tree": r"tree: $\lceil\log_2 N\rceil\,S$",
    "ring": r"ring: $2\,\frac{N-1}{N}\,S$",
}


def draw_ring(sent: Sequence[Sequence[Any]], held: Sequence[Any], title: str) -> None:
    """Four ranks in a ring, a panel for each step: what travels along each link. The last panel: what each rank holds.

    sent[rank][step] and held[rank] are arrays of numbers with a place for each rank: 330 is chunk 2, whose digit is 3,
    of ranks 1 and 2.
    """
    steps = max(map(len, sent))
    columns = min(4, steps + 1)
    rows = -(-(steps + 1) // columns)
    height = 2.9 * rows + 0.35
    fig, axes = canvas(
        10.5,
        height,
        title,
        rows=rows,
        columns=columns,
        bold=True,
        within=(0.0, 1.0, 1 - 0.6 / height, 0.0),
        gap=(0.0, 0.12),
    )
    for step, ax in enumerate(axes.flat):
        ax.axis("off")
        if step > steps:
            continue
        ax.set(xlim=(-1.75, 1.75), ylim=(-1.55, 1.55), aspect="equal")
        ax.set_title(f"step {step + 1}" if step < steps else "at the end, each rank has", fontsize=10)
        for rank in range(4):
            x, y = _on_the_circle(rank) if step < steps else (-1.45, 1.05 - 0.7 * rank)
            ax.add_patch(plt.Circle((x, y), 0.25, color=RANKS[rank], zorder=3))
            ax.text(x, y, str(rank), color=DARK, ha="center", va="center", fontweight="bold", zorder=4)
            if step < steps:
                _draw_link(ax, rank, sent[rank][step : step + 1])
            else:
                for place, number in enumerate(np.ravel(held[rank])[:4]):
                    _draw_number(ax, (x + 0.65 + 0.72 * place, y), int(number))
    show(fig, _in_words(sent, held, title))


def _on_the_circle(place: float) -> tuple[float, float]:
    """The place of a rank: rank 0 on top, the others clockwise."""
    return float(np.sin(np.pi / 2 * place)), float(np.cos(np.pi / 2 * place))


def _draw_link(ax: Any, rank: int, message: Sequence[Any]) -> None:
    """An arrow from a rank to the next, and the array that travels there, if any."""
    way = [_on_the_circle(rank + 0.2), _on_the_circle(rank + 0.8)]
    style = {"arrowstyle": "-|>", "connectionstyle": "arc3,rad=-0.28", "color": GREY, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", way[1], way[0], arrowprops=style)
    x, y = _on_the_circle(rank + 0.5)
    for array in message:
        for place, number in enumerate(np.ravel(array)[:4]):
            _draw_number(ax, (1.24 * x, 1.24 * y - 0.31 * place), int(number))


def _draw_number(ax: Any, centre: tuple[float, float], number: int) -> None:
    """A number, under a strip with a color for every rank that is in it."""
    x, y = centre[0] - 0.3, centre[1]
    ax.add_patch(plt.Rectangle((x, y - 0.13), 0.6, 0.26, facecolor="white", edgecolor=GREY, lw=0.6, zorder=5))
    for rank in range(4):
        if number // 10**rank % 10:
            ax.add_patch(
                plt.Rectangle((x + 0.15 * (3 - rank), y - 0.13), 0.15, 0.26, color=RANKS[rank], lw=0, zorder=6)
            )
    for rank in range(4):
        digit = number // 10**rank % 10
        weight = "bold" if digit else "normal"
        at = (x + 0.15 * (3 - rank) + 0.075, y - 0.01)
        ax.text(*at, str(digit), ha="center", va="center", fontsize=8, color=DARK, fontweight=weight, zorder=7)


def _in_words(sent: Sequence[Sequence[Any]], held: Sequence[Any], title: str) -> str:
    """The picture in words."""
    words = [f"{title}. Four ranks in a ring."]
    for step in range(max(map(len, sent))):
        travels = [
            f"rank {rank} to {(rank + 1) % 4}: {_digits(of[step])}" for rank, of in enumerate(sent) if step < len(of)
        ]
        words.append(f"Step {step + 1}, {', '.join(travels)}.")
    words.append(
        "At the end, " + ", ".join(f"rank {rank} has {_digits(array)}" for rank, array in enumerate(held)) + "."
    )
    return " ".join(words)


def _digits(array: Any) -> str:
    return " ".join(str(int(number)) for number in np.ravel(array))


def draw_busiest(busiest: Mapping[tuple[str, int], int], size: int) -> None:
    """How much the busiest rank sends, over N. Dots, busiest[name, n], were counted, in bytes of float32."""
    fig, [[ax]] = canvas(8, 3.9, within=(0.08, 0.78, 0.92, 0.14))
    every_n = range(2, 17)
    for name, formula in COMPUTED.items():
        line = [max(formula(size, n).sent) / size for n in every_n]
        counted = {n: nbytes / 4 / size for (of, n), nbytes in busiest.items() if of == name}
        ax.plot(every_n, line, color=ALGORITHMS[name], lw=1.6, zorder=1)
        ax.scatter(counted.keys(), counted.values(), s=34, color=ALGORITHMS[name], zorder=2)
        ax.text(16.3, line[-1], FORMULAS[name], va="center", color=DARK, fontsize=11)
    ax.set(xlabel="ranks $N$", ylabel="sent by the busiest rank, in units of $S$", xticks=every_n[::2], ylim=(0, 15.8))
    ax.grid(axis="y", color=LIGHT, lw=0.8)
    ax.set_axisbelow(True)
    ax.set_title("Dots: counted on ranks. Lines: the formulas.", loc="left", fontsize=10)
    show(
        fig,
        "What the busiest rank sends, in units of the array, for 2 to 16 ranks: the server's line climbs to 15, the"
        " tree's goes up in steps to 4, the ring's stays below 2. The dots that were counted lie on the lines.",
    )


def print_bytes(busiest: Mapping[tuple[str, int], int], in_all: Mapping[tuple[str, int], int], size: int) -> None:
    """Bytes of float32 that the busiest rank and all ranks send: computed and counted."""
    print(f"{'bytes sent':12}{'busiest rank':>27}{'all ranks':>27}")
    print(f"{'':9}{'N':>3}{'computed':>14}{'counted':>13}{'computed':>14}{'counted':>13}")
    for name, formula in COMPUTED.items():
        for n in (2, 4, 8):
            sent = formula(size, n).sent
            print(f"{name:9}{n:>3}{max(sent) * 4:>14,}{busiest[name, n]:>13,}", end="")
            print(f"{sum(sent) * 4:>14,}{in_all[name, n]:>13,}")


def print_ranks(bytes_sent: Sequence[Mapping[tuple[str, int], int]], own: str, model: str) -> None:
    """Bytes that each rank sends with two functions, of exercise.py and of the chapter, for several sizes."""
    print(f"bytes sent by each of 4 ranks{'computed':>14}{'counted':>14}{'the chapter: counted':>23}")
    for size in (4, 13, 840_000):
        for rank, numbers in enumerate(COMPUTED["ring"](size, 4).sent):
            counted, also = (bytes_sent[rank][of, size] for of in (own, model))
            print(f"{size:>9,} float32, rank {rank}{4 * numbers:>18,}{counted:>14,}{also:>23,}")
