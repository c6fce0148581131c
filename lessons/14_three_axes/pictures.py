"""The pictures of lesson 14. They draw counted values, or computed ones if the title says so."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap, to_rgba

from minidist.classroom.notebook.drawing import canvas, show
from minidist.memory.colors import BLUE, DARK, GREEN, GREY, LIGHT, ORANGE, RED

Array = np.ndarray


def draw_traffic(peers: Mapping[str, Sequence[Mapping[int, int]]], per_host: int) -> dict[str, int]:
    """The bytes that each rank sent to each other, {receiver: bytes} for each rank: a panel for each order of the axes,
    a frame around each host. Returns for each order the bytes that leave a host."""
    orders = {name: np.array([[of.get(peer, 0) for peer in range(len(each))] for of in each])
              for name, each in peers.items()}  # fmt: skip
    across, blues = {}, ListedColormap(np.linspace(to_rgba("white"), to_rgba(BLUE), 64))
    fig, axes = canvas(9.6, 4.3, columns=len(orders), hidden=())
    words = []
    for ax, (name, sent) in zip(axes[0], orders.items(), strict=True):
        n = len(sent)
        ax.imshow(np.ma.masked_equal(sent, 0), cmap=blues, vmin=0, vmax=max(map(np.max, orders.values())))
        for source, dest in zip(*np.nonzero(sent), strict=True):
            size = f"{sent[source, dest] / 1000:.0f}"
            ax.text(dest, source, size, ha="center", va="center", fontsize=8.5, color=DARK)
        for first in range(0, n, per_host):
            frame = plt.Rectangle(
                (first - 0.5, first - 0.5), per_host, per_host, fill=False, ec=RED, lw=2, clip_on=False
            )
            ax.add_patch(frame)
        ax.set_xticks(range(n))
        ax.set_yticks(range(n))
        ax.set_xlabel("to rank (numbers: kB)", fontsize=9)
        ax.set_ylabel("from rank", fontsize=9)
        ax.tick_params(length=0)
        ax.spines[:].set_color(GREY)
        host = np.arange(n) // per_host
        left = across[name] = int(sent[host[:, None] != host].sum())
        ax.set_title(f"{name}: {left / 1000:,.0f} kB leave a host", loc="left", fontsize=10)
        peers = [f"rank 0 sends {sent[0, peer] / 1000:.0f} kB to rank {peer}" for peer in np.nonzero(sent[0])[0]]
        words.append(f"{name}: {', '.join(peers)}; {left / 1000:,.0f} of {sent.sum() / 1000:,.0f} kB leave a host.")
    fig.tight_layout()
    show(
        fig,
        f"kB that each rank sent to each other in a step (counted), with a frame around each host. {' '.join(words)}",
    )
    return across


def show_layouts(
    found: Mapping[Any, tuple[float, Mapping[str, float]]], seconds: Mapping[Any, float], memory: float
) -> None:
    """A table of layouts, the fastest first: (bytes that a rank holds, {axis: bytes that it sends}) of each."""
    print(f"{'':11}{'a rank':>11}{'and sends, in GB, along':>30}{'a step':>10}")
    print(f"{'d':>3}{'p':>4}{'t':>4}{'holds':>11}{'tensor':>10}{'pipeline':>10}{'data':>10}{'takes':>10}")
    for d, p, t in sorted(found, key=lambda layout: seconds[layout]):
        held, sends = found[d, p, t]
        along_axes = "".join(f"{sends[axis] / 1e9:10.1f}" for axis in ("tensor", "pipeline", "data"))
        line = f"{d:3}{p:4}{t:4}{held / 1e9:8.1f} GB{along_axes}{seconds[d, p, t]:8.1f} s"
        print(line + " too large" * (held > memory))


def draw_layouts(layouts: Mapping[str, tuple[Mapping[str, float], bool]], title: str) -> None:
    """A bar for each layout: seconds by cause, in addition to the work, which is the same everywhere. Pale if the model
    does not fit."""
    colors = {"bubble": LIGHT, "tensor": BLUE, "pipeline": GREEN, "data": ORANGE}
    fig, [[ax]] = canvas(9.6, 0.3 * len(layouts) + 1.2)
    words = []
    for row, (name, (parts, fits)) in enumerate(layouts.items()):
        left = 0.0
        for what, color in colors.items():
            ax.barh(row, parts[what], left=left, color=color, height=0.7, alpha=1 if fits else 0.3)
            left += parts[what]
        ax.text(left + 0.1, row, f"{left:.2f} s" + ("" if fits else ", does not fit"), va="center", fontsize=8.5)
        words.append(f"{name}: {left:.2f} s" + ("." if fits else ", does not fit."))
    for what, color in colors.items():
        ax.plot([], [], "s", color=color, label=what)
    ax.set_yticks(range(len(layouts)), list(layouts), fontsize=8.5)
    widest = max(sum(parts[what] for what in colors) for parts, _ in layouts.values())
    ax.set_xlim(0, 1.2 * widest)
    ax.set_ylim(len(layouts) - 0.4, -0.6)
    work = next(iter(layouts.values()))[0]["work"]
    ax.set_xlabel(f"seconds in addition to {work:.1f} s of work, if ranks do not compute while they send", fontsize=9)
    ax.legend(frameon=False, fontsize=8.5, ncols=5, loc="lower left", bbox_to_anchor=(0, 1.0))
    ax.set_title(title, loc="left", fontsize=10, pad=26)
    fig.tight_layout()
    show(fig, f"{title}. {' '.join(words)}")


def draw_runs(panels: Mapping[str, Mapping[str, Sequence[float]]], title: str) -> None:
    """A panel for each quantity, with a line for each program over the steps 1, 2, ..."""
    fig, axes = canvas(9.6, 2.9, title, columns=len(panels))
    words = []
    for ax, (what, lines) in zip(axes[0], panels.items(), strict=True):
        for (name, values), color, width in zip(lines.items(), (BLUE, RED, ORANGE), (4.0, 1.8, 1.8), strict=False):
            ax.plot(range(1, len(values) + 1), values, color=color, lw=width, label=name)
            words.append(f"{what}, {name}: from {values[0]:.3f} to {values[-1]:.3f}.")
        ax.set_xlabel("step", fontsize=9)
        ax.set_title(what, loc="left", fontsize=9.5)
    axes[0, 0].legend(frameon=False, fontsize=8.5)
    fig.tight_layout()
    show(fig, f"{title}. {' '.join(words)}")
