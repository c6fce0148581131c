"""The pictures of lesson 09. They draw what the ranks brought back."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt

from minidist.classroom.lesson import show
from minidist.papers.zero import FIGURE_1

STATES = {"parameters": "#3b6ea8", "gradients": "#d99a2b", "optimizer": "#5a9e6f"}


def draw_moments(moments: Sequence[tuple[str, str, int, int]], psi: int, title: str = "") -> None:
    """What one rank holds besides its shards, moment after moment of a step.

    moments: (direction, unit, bytes of gathered parameters, bytes of gradients not yet reduced).
    """
    fig, ax = plt.subplots(figsize=(10, 3.6))
    places = range(len(moments))
    gathered, buckets = ([moment[i] / psi for moment in moments] for i in (2, 3))
    ax.bar(places, gathered, width=1.0, color=STATES["parameters"], label="gathered parameters")
    ax.bar(places, buckets, width=1.0, bottom=gathered, color=STATES["gradients"], label="gradients, not yet reduced")
    ax.axhline(2, color="#888888", ls="--", lw=1.2)
    ax.text(len(moments) - 0.5, 1.97, "all parameters: $2\\Psi$", ha="right", va="top", color="#666666")
    by_height = sorted(places, key=lambda place: gathered[place] + buckets[place])
    peaks = {moments[place][:2]: place for place in by_height}  # of each unit in each direction
    ax.set_xticks(
        list(peaks.values()),
        [unit for _, unit in peaks],
        rotation=45,
        ha="right",
        rotation_mode="anchor",
        fontsize=9,
    )
    forwards = sum(direction == "forward" for direction, *_ in moments)
    ax.axvline(forwards - 0.5, color="#bbbbbb", lw=0.8)
    ax.text(forwards / 2, 2.22, "forward", ha="center", fontweight="bold")
    ax.text((forwards + len(moments)) / 2, 2.22, "backward", ha="center", fontweight="bold")
    ax.set(xlim=(-1, len(moments)), ylim=(0, 2.15), ylabel="bytes, in units of $\\Psi$")
    ax.tick_params(axis="x", length=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, 0.9))
    fig.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    fig.subplots_adjust(left=0.07, right=0.99, top=0.84, bottom=0.25)
    highest = max(moments, key=lambda moment: moment[2] + moment[3])
    show(
        fig,
        f"{title} What a rank holds besides its shards during one step, in bytes of psi: a bump for each unit in the"
        " forward, and one for each in the backward, where its gradient comes on top. The highest is"
        f" {(highest[2] + highest[3]) / psi:.2f} psi, at {highest[1]} in the {highest[0]}; all parameters are 2 psi.",
    )


def draw_figure_1(held: Mapping[str, Sequence[int]], psi: int, size: float = 7.5e9) -> None:
    """The paper's figure 1: held[stage] are bytes of parameters, gradients and optimizer state on one rank of 64, for a
    model of `psi` parameters; they are scaled to `size`."""
    fig, ax = plt.subplots(figsize=(10, 2.9))
    for row, (figure, states) in enumerate(zip(FIGURE_1, held.values(), strict=True)):
        left = 0.0
        for (kind, colour), nbytes in zip(STATES.items(), states, strict=True):
            gigabytes = nbytes / psi * size / 1e9
            ax.barh(row, gigabytes, left=left, height=0.62, color=colour, label=kind if row == 0 else None)
            left += gigabytes
        ax.text(
            left + 1,
            row,
            f"{figure.printed} GB",
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    ax.axvline(32, color="#888888", ls="--", lw=1.2, zorder=0)
    ax.text(32.6, 3.45, "a GPU of 32 GB", color="#666666", va="center", fontsize=9)
    ax.set_yticks(range(len(held)), list(held))
    ax.set(xlim=(0, 130), ylim=(3.7, -0.6), xlabel="GB on each of 64 ranks, 7.5 billion parameters")
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.12))
    fig.subplots_adjust(left=0.12, right=0.99, top=0.98, bottom=0.17)
    totals = {name: sum(states) / psi * size / 1e9 for name, states in held.items()}
    show(
        fig,
        "GB on each of 64 ranks for 7.5 billion parameters, counted and scaled: "
        + ", ".join(f"{name} {total:.1f}" for name, total in totals.items())
        + ". The numbers beside the bars are those that the paper prints. A dashed line stands at 32 GB.",
    )
