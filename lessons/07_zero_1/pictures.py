"""The pictures of lesson 07. They draw what the ranks brought back."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from minidist.classroom.lesson import show
from minidist.papers.zero import TABLE_1

Array = np.ndarray
RANKS = ["#3b6ea8", "#d99a2b", "#5a9e6f", "#b3546a"]
PHASES = {
    "all-reduce gradients": "#d99a2b",
    "reduce-scatter gradients": "#b3546a",
    "all-gather parameters": "#3b6ea8",
    "norm": "#444444",
}


def draw_held(found: Sequence[Mapping[str, Array]], whole: Mapping[str, Array], title: str = "") -> None:
    """Which part of some arrays each rank holds: found[rank][kind] is looked for in whole[kind], at every place."""
    fig, axes = plt.subplots(1, len(whole), figsize=(10, 2.5), sharey=True)
    words = []
    for ax, (kind, everything) in zip(axes, whole.items(), strict=True):
        ends = []
        for rank, of_rank in enumerate(found):
            mine = of_rank[kind]
            places = range(everything.size - mine.size + 1)
            start = next(at for at in places if np.array_equal(everything[at : at + mine.size], mine))
            ax.barh(rank, everything.size, height=0.7, color="#eeeeee")
            ax.barh(rank, mine.size, left=start, height=0.7, color=RANKS[rank])
            ends.append(f"rank {rank} {start} to {start + mine.size}")
        ax.set_title(f"{kind}, {everything.itemsize} bytes each", loc="left", fontsize=9.5)
        ax.set(xlim=(0, everything.size), xticks=np.linspace(0, everything.size, 5), ylim=(len(found) - 0.5, -0.5))
        ax.tick_params(length=0, labelsize=9)
        ax.spines[:].set_visible(False)
        words.append(f"{kind}: {', '.join(ends)}")
    axes[0].set_yticks(range(len(found)), [f"rank {rank}" for rank in range(len(found))])
    fig.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    fig.subplots_adjust(left=0.07, right=0.985, top=0.78, bottom=0.12, wspace=0.12)
    show(fig, f"{title} From which number to which. {'; '.join(words)}.")


def draw_traffic(programs: Mapping[str, Mapping[str, float]], title: str = "") -> None:
    """What a rank sends in a step, by phase: programs[name][phase], in units of Ψ(N-1)/N."""
    fig, ax = plt.subplots(figsize=(10, 0.95 + 0.5 * len(programs)))
    words = []
    for row, (name, phases) in enumerate(programs.items()):
        left = 0.0
        for phase, sent in phases.items():
            ax.barh(row, sent, left=left, height=0.66, color=PHASES[phase], edgecolor="white")
            if sent > 0.2:
                ax.text(left + sent / 2, row, phase, ha="center", va="center", color="white", fontsize=9)
            left += sent
        words.append(f"{name}: " + ", ".join(f"{phase} {sent:.2f}" for phase, sent in phases.items()))
    longest = max(sum(phases.values()) for phases in programs.values())
    ax.set_yticks(range(len(programs)), list(programs))
    ax.set_xticks(np.arange(0, longest + 0.5, 0.5))
    ax.set(xlim=(0, 1.02 * longest), ylim=(len(programs) - 0.5, -0.5), xlabel="sent, in units of $\\Psi\\,(N-1)/N$")
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right"]].set_visible(False)
    height = fig.get_size_inches()[1]
    fig.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    fig.subplots_adjust(left=0.14, right=0.99, top=1 - 0.33 / height, bottom=0.5 / height)
    show(fig, f"{title} What the rank sends, in units of psi times (N-1)/N. {'; '.join(words)}.")


def draw_memory(counted: Mapping[int, float]) -> None:
    """Bytes a parameter on each of N ranks: the formula, what was counted, and what the paper's table prints."""
    fig, ax = plt.subplots(figsize=(8, 3.3))
    every = np.geomspace(1, 1024, 200)
    ax.plot(every, 4 + 12 / every, color=RANKS[0], lw=1.6, zorder=1, label=r"$4 + 12/N$ (computed)")
    ax.scatter(counted.keys(), counted.values(), s=40, color=RANKS[0], zorder=3, label="counted")
    printed = {n: float(row[0].printed) / 7.5 for n, row in TABLE_1["7.5B"].items()}
    ax.scatter(
        printed.keys(), printed.values(), s=95, facecolor="none", edgecolor=RANKS[1], lw=1.6, zorder=2, label="printed"
    )
    ax.axhline(4, color="#888888", ls="--", lw=1.2, zorder=0)
    ax.text(1024, 3.2, "4: parameters and gradients, on every rank", ha="right", va="top", color="#666666", fontsize=9)
    ax.set_xscale("log", base=2)
    ticks = [1, 2, 4, 16, 64, 256, 1024]
    ax.set_xticks(ticks, [str(n) for n in ticks])
    ax.set(xlabel="ranks $N$", ylabel="bytes a parameter", ylim=(0, 17))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="upper right")
    fig.subplots_adjust(left=0.09, right=0.98, top=0.97, bottom=0.16)
    words = ", ".join(f"{held:.2f} with {n}" for n, held in counted.items())
    show(
        fig,
        "Bytes a parameter on each of N ranks, for 1 to 1024 ranks: the line of 4 + 12/N falls from 16 towards 4, and"
        f" hardly falls any more after 16 ranks. The counted dots lie on it: {words}. So do the figures of the paper's"
        " table 1, divided by 7.5 billion.",
    )
