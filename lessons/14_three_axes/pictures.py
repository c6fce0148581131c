"""The pictures of lesson 14. They draw what was counted, or computed where the title says so."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from minidist.classroom.lesson import show

Array = np.ndarray
BLUE, ORANGE, GREEN, RED, GREY = "#3b6ea8", "#d99a2b", "#5a9e6f", "#b5524a", "#c4c4c4"


def draw_traffic(orders: Mapping[str, Array], per_host: int) -> None:
    """Who sent how much to whom, a panel for each order of the axes; a frame around each host."""
    fig, axes = plt.subplots(1, len(orders), figsize=(9.6, 4.3), squeeze=False)
    words = []
    for ax, (name, sent) in zip(axes[0], orders.items(), strict=True):
        n = len(sent)
        ax.imshow(np.ma.masked_equal(sent, 0), cmap="Blues", vmin=0, vmax=max(map(np.max, orders.values())) * 1.3)
        for source, dest in zip(*np.nonzero(sent), strict=True):
            colour = "white" if sent[source, dest] > sent.max() / 2 else "black"
            size = f"{sent[source, dest] / 1000:.0f}"
            ax.text(dest, source, size, ha="center", va="center", fontsize=8.5, color=colour)
        for first in range(0, n, per_host):
            frame = plt.Rectangle(
                (first - 0.5, first - 0.5), per_host, per_host, fill=False, ec=RED, lw=2, clip_on=False
            )
            ax.add_patch(frame)
        ax.set_xticks(range(n))
        ax.set_yticks(range(n))
        ax.set_xlabel("to rank", fontsize=9)
        ax.set_ylabel("from rank", fontsize=9)
        ax.tick_params(length=0)
        ax.spines[:].set_color(GREY)
        host = np.arange(n) // per_host
        left = sent[host[:, None] != host].sum()
        ax.set_title(f"{name}: {left / 1000:,.0f} kB leave a host", loc="left", fontsize=10)
        peers = [f"rank 0 sends {sent[0, peer] / 1000:.0f} kB to rank {peer}" for peer in np.nonzero(sent[0])[0]]
        words.append(f"{name}: {', '.join(peers)}; {left / 1000:,.0f} of {sent.sum() / 1000:,.0f} kB leave a host.")
    fig.tight_layout()
    show(
        fig,
        f"kB that each rank sent to each other in a step (counted), with a frame around each host. {' '.join(words)}",
    )


def draw_layouts(layouts: Mapping[str, tuple[Mapping[str, float], bool]], title: str) -> None:
    """A bar for each layout, of the seconds that each thing takes besides the work, which is the same everywhere; pale
    where the model does not fit."""
    colours = {"bubble": ORANGE, "tensor": BLUE, "pipeline": GREEN, "data": RED}
    fig, ax = plt.subplots(figsize=(9.6, 0.3 * len(layouts) + 1.2))
    words = []
    for row, (name, (parts, fits)) in enumerate(layouts.items()):
        left = 0.0
        for what, colour in colours.items():
            ax.barh(row, parts[what], left=left, color=colour, height=0.7, alpha=1 if fits else 0.3)
            left += parts[what]
        ax.text(left + 0.1, row, f"{left:.2f} s" + ("" if fits else ", does not fit"), va="center", fontsize=8.5)
        words.append(f"{name}: {left:.2f} s" + ("." if fits else ", does not fit."))
    for what, colour in colours.items():
        ax.plot([], [], "s", color=colour, label=what)
    ax.set_yticks(range(len(layouts)), list(layouts), fontsize=8.5)
    widest = max(sum(parts[what] for what in colours) for parts, _ in layouts.values())
    ax.set_xlim(0, 1.2 * widest)
    ax.set_ylim(len(layouts) - 0.4, -0.6)
    work = next(iter(layouts.values()))[0]["work"]
    ax.set_xlabel(f"seconds besides {work:.1f} s of work, if nothing is sent while ranks compute", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8.5, ncols=5, loc="lower left", bbox_to_anchor=(0, 1.0))
    ax.set_title(title, loc="left", fontsize=10, pad=26)
    fig.tight_layout()
    show(fig, f"{title}. {' '.join(words)}")


def draw_runs(panels: Mapping[str, Mapping[str, Sequence[float]]], title: str) -> None:
    """A panel for each quantity, with a line for each program over the steps 1, 2, ..."""
    fig, axes = plt.subplots(1, len(panels), figsize=(9.6, 2.9), squeeze=False)
    words = []
    for ax, (what, lines) in zip(axes[0], panels.items(), strict=True):
        for (name, values), colour, width in zip(lines.items(), (BLUE, RED, ORANGE), (4.0, 1.8, 1.8), strict=False):
            ax.plot(range(1, len(values) + 1), values, color=colour, lw=width, label=name)
            words.append(f"{what}, {name}: from {values[0]:.3f} to {values[-1]:.3f}.")
        ax.set_xlabel("step", fontsize=9)
        ax.set_title(what, loc="left", fontsize=9.5)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(frameon=False, fontsize=8.5)
    fig.suptitle(title, x=0.01, ha="left", fontsize=10)
    fig.tight_layout()
    show(fig, f"{title}. {' '.join(words)}")
