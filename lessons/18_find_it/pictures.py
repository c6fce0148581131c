"""The pictures of lesson 18. They draw counted values."""

from collections.abc import Collection, Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from minidist.classroom.lesson import show
from minidist.colors import BLUE, DARK, GREEN, GREY, LIGHT, ORANGE, RED

LINES = ((BLUE, "-", 4.0), (RED, "-", 1.8), (ORANGE, "--", 1.8), (GREEN, ":", 2.2))  # lines may lie on one another


def bare(ax: plt.Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)


def draw_losses(panels: Mapping[str, Mapping[str, Sequence[float]]], title: str) -> None:
    """Losses of several runs, one panel for each optimizer."""
    fig, axes = plt.subplots(1, len(panels), figsize=(9.6, 3.2), squeeze=False)
    words = []
    for ax, (name, runs) in zip(axes[0], panels.items(), strict=True):
        for (label, losses), (color, style, width) in zip(runs.items(), LINES, strict=False):
            ax.plot(range(1, len(losses) + 1), losses, style, color=color, lw=width, label=label)
            words.append(f"{name}, {label}: from {losses[0]:.3f} to {losses[-1]:.3f}.")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(xlabel="step", ylabel="loss")
        ax.set_title(name, loc="left", fontsize=10)
        ax.legend(frameon=False, fontsize=8.5)
        bare(ax)
    fig.suptitle(title, x=0.01, ha="left", fontsize=10)
    fig.tight_layout()
    show(fig, f"{title}. Losses by step. {' '.join(words)}")


def draw_table(table: Mapping[str, Collection[str]], checks: Sequence[str], title: str) -> None:
    """Bugs as rows, checks as columns: a dot where the check notices the bug."""
    fig, ax = plt.subplots(figsize=(9.6, 0.26 * len(table) + 1.2))
    for row, noticing in enumerate(table.values()):
        for column, check in enumerate(checks):
            ax.scatter(column, row, s=90, color=GREEN if check in noticing else LIGHT, edgecolor=GREY, lw=0.5)
    sums = [sum(check in noticing for noticing in table.values()) for check in checks]
    for column, count in enumerate(sums):
        ax.text(column, len(table), str(count), ha="center", va="center", fontsize=9, color=DARK)
    ax.set_yticks(range(len(table) + 1), [*table, "noticed"], fontsize=8.5)
    ax.set_xticks(range(len(checks)), checks, fontsize=9)
    ax.xaxis.tick_top()
    ax.set(xlim=(-0.6, len(checks) - 0.4), ylim=(len(table) + 0.6, -0.6))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(title, loc="left", fontsize=10)
    fig.tight_layout()
    rows = " ".join(f"{name}: {', '.join(check for check in checks if check in of)}." for name, of in table.items())
    show(fig, f"{title}. {rows}")
