"""The pictures of lesson 04. They draw what the ranks brought back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

RANKS = ["#3b6ea8", "#d99a2b", "#5a9e6f", "#b5524a"]  # a colour for each rank's numbers
ALGORITHMS = {"server": "#b5524a", "tree": "#d99a2b", "ring": "#3b6ea8"}
FORMULAS = {
    "server": r"server: $(N-1)\,S$",
    "tree": r"tree: $\lceil\log_2 N\rceil\,S$",
    "ring": r"ring: $2\,\frac{N-1}{N}\,S$",
}


def draw_ring(histories: Sequence[Sequence[Any]], title: str, moving: Callable[[int, int], int]) -> None:
    """One panel for each moment: rows are ranks, columns chunks, colours say whose numbers are in a chunk.

    histories[rank][moment] holds the four chunks, numbers with a digit for each rank; moving(rank, moment) is the chunk
    that the rank sends next.
    """
    moments = len(histories[0])
    fig, axes = plt.subplots(1, moments, figsize=(10.5, 2.9))
    for moment, ax in enumerate(axes):
        for rank in range(4):
            for c in range(4):
                _draw_chunk(ax, rank, c, int(histories[rank][moment][c]))
            if moment < moments - 1:
                c = moving(rank, moment)
                ax.add_patch(plt.Rectangle((c + 0.06, rank + 0.1), 0.88, 0.8, fill=False, color="black", lw=1.6))
                ax.annotate(
                    "", (c + 0.5, rank + 1.4), (c + 0.5, rank + 0.6), arrowprops={"arrowstyle": "-|>", "lw": 1.3}
                )
        ax.set(xlim=(0, 4), ylim=(4.45, -0.05), xlabel="chunk")
        ax.set_xticks(np.arange(4) + 0.5, map(str, range(4)))
        ax.set_yticks(np.arange(4) + 0.5, [f"rank {rank}" for rank in range(4)] if moment == 0 else [""] * 4)
        for label, colour in zip(ax.get_yticklabels(), RANKS, strict=True):
            label.set(color=colour, fontweight="bold")
        ax.tick_params(length=0)
        ax.set_title("at the start" if moment == 0 else f"after step {moment}", fontsize=10)
        ax.spines[:].set_visible(False)
    fig.suptitle(title, x=0.07, ha="left", fontsize=11, fontweight="bold")
    fig.subplots_adjust(left=0.07, right=0.99, top=0.78, bottom=0.16, wspace=0.12)


def _draw_chunk(ax: Any, rank: int, c: int, digits: int) -> None:
    """A grey box with a coloured strip for every rank whose numbers are in the chunk."""
    ax.add_patch(plt.Rectangle((c + 0.06, rank + 0.1), 0.88, 0.8, color="#eeeeee", lw=0))
    for r in range(4):
        if digits // 10**r % 10:
            ax.add_patch(plt.Rectangle((c + 0.06 + 0.22 * r, rank + 0.1), 0.22, 0.8, color=RANKS[r], lw=0))


def draw_busiest(formulas: Mapping[str, Any], busiest: Mapping[tuple[str, int], int], size: int) -> None:
    """What the busiest rank sends against N. busiest[name, n] was counted, in bytes of float32; formulas are lines."""
    fig, ax = plt.subplots(figsize=(8, 3.9))
    every_n = range(2, 17)
    for name, formula in formulas.items():
        line = [max(formula(size, n).sent) / size for n in every_n]
        counted = {n: nbytes / 4 / size for (of, n), nbytes in busiest.items() if of == name}
        ax.plot(every_n, line, color=ALGORITHMS[name], lw=1.6, zorder=1)
        ax.scatter(counted.keys(), counted.values(), s=34, color=ALGORITHMS[name], zorder=2)
        ax.text(16.3, line[-1], FORMULAS[name], va="center", color=ALGORITHMS[name], fontsize=11)
    ax.set(xlabel="ranks $N$", ylabel="sent by the busiest rank, in units of $S$", xticks=every_n[::2], ylim=(0, 15.8))
    ax.grid(axis="y", color="#dddddd", lw=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title("Dots: counted on ranks. Lines: the formulas.", loc="left", fontsize=10)
    fig.subplots_adjust(left=0.08, right=0.78, top=0.92, bottom=0.14)
