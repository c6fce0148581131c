"""The pictures of lesson 18. They draw counted values."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from minidist.classroom.notebook.drawing import ALL_SIDES, canvas, show
from minidist.memory.colors import BLUE, DARK, GREEN, GREY, LIGHT, RED

MARKS = {"x": ("notices it", GREEN), ".": ("does not", LIGHT)}
SAME_PROGRAM = "N"  # the first check that needs no healthy program


def draw_losses(runs: Mapping[str, Sequence[float]], title: str) -> None:
    """Losses of two runs, whose lines may lie on one another."""
    fig, [[ax]] = canvas(9.6, 3.2, hidden=())
    for (label, losses), color, width in zip(runs.items(), (BLUE, RED), (4.0, 1.8), strict=True):
        ax.plot(range(1, len(losses) + 1), losses, color=color, lw=width, label=label)
    ax.set_ylabel("loss")
    finish(ax, title)
    words = (f"{label}: from {losses[0]:.3f} to {losses[-1]:.3f}." for label, losses in runs.items())
    show(fig, f"{title}. Losses by step. {' '.join(words)}")


def draw_differences(runs: Mapping[str, Sequence[float]], tolerance: float, title: str) -> None:
    """Relative differences of losses by step, by optimizer. Those below rounding are drawn at rounding."""
    fig, [[ax]] = canvas(9.6, 3.2, hidden=())
    for (label, differences), color in zip(runs.items(), (BLUE, RED), strict=True):
        ax.plot(range(1, len(differences) + 1), [max(x, 1e-16) for x in differences], color=color, lw=2, label=label)
    ax.axhline(tolerance, color=GREY, ls=":")
    ax.set_yscale("log")
    ax.set_ylabel("relative difference of losses")
    finish(ax, title)
    words = (f"{label}: {of[1]:.0e} at step 2, {of[-1]:.0e} at step {len(of)}." for label, of in runs.items())
    show(fig, f"{title}. Relative differences of losses by step. {' '.join(words)}")


def finish(ax: plt.Axes, title: str) -> None:
    ax.set_xlabel("step")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_title(title, loc="left", fontsize=10)
    ax.legend(frameon=False, fontsize=8.5)
    ax.spines[["top", "right"]].set_visible(False)
    ax.figure.tight_layout()


def draw_table(table: Mapping[str, Mapping[str, str]], title: str) -> None:
    """Bugs as rows, checks as columns; for the marks see given.read_table."""
    checks = [*next(iter(table.values()))]
    fig, [[ax]] = canvas(9.6, 0.26 * len(table) + 1.9, hidden=ALL_SIDES)
    for mark, (label, color) in MARKS.items():
        at = [(x, y) for y, of in enumerate(table.values()) for x, check in enumerate(checks) if of[check] == mark]
        ax.scatter(*zip(*at, strict=True), s=90, color=color, edgecolor=GREY, lw=0.5, label=label)
    ax.scatter([], [], alpha=0, label="no dot: was not asked")
    for column, check in enumerate(checks):
        count = sum(of[check] == "x" for of in table.values())
        ax.text(column, len(table), str(count), ha="center", va="center", fontsize=9, color=DARK)
    ax.set_yticks(range(len(table) + 1), [*table, "noticed"], fontsize=8.5)
    ax.set_xticks(range(len(checks)), checks, fontsize=9)
    ax.xaxis.tick_top()
    border = checks.index(SAME_PROGRAM)
    ax.axvline(border - 0.5, color=GREY, lw=0.8)
    span(ax, 0, border - 1, f"these {border} compare with the healthy program")
    span(ax, border, len(checks) - 1, f"these {len(checks) - border} compare the program with itself")
    ax.set(xlim=(-0.6, len(checks) - 0.4), ylim=(len(table) + 0.6, -0.6))
    ax.tick_params(length=0)
    ax.set_title(title, loc="left", fontsize=10, pad=40)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3, frameon=False, fontsize=8.5)
    fig.tight_layout()
    rows = (f"{name}: {', '.join(check for check in checks if of[check] == 'x')}." for name, of in table.items())
    show(fig, f"{title}. {', '.join(checks)}: the first {border} compare with the healthy program. {' '.join(rows)}")


def span(ax: plt.Axes, first: int, last: int, heading: str) -> None:
    """A heading over several columns, with a line above their names from the first one to the last."""
    left, right, y = first - 0.4, last + 0.4, -1.6
    ax.plot([left, left, right, right], [y + 0.2, y, y, y + 0.2], color=DARK, lw=0.8, clip_on=False)
    ax.text((left + right) / 2, y - 0.15, heading, ha="center", va="bottom", fontsize=8.5, color=DARK)
