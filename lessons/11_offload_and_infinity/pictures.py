"""The pictures of lesson 11. They draw what was counted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from minidist.classroom.notebook.drawing import canvas, name_colors, show
from minidist.memory.colors import BLUE, DARK, GREEN, LIGHT, ORANGE, RED

MEMORIES = {"device": BLUE, "host": ORANGE, "disk": LIGHT}
LANES = {"read": ORANGE, "update": BLUE, "write": GREEN}


def draw_memories(runs: Mapping[str, Mapping[str, Any]], psi: int, limit: int, title: str) -> None:
    """A bar for each way to train: the most that a rank holds on its device, host and disk, and the device's
    limit; as a table, too, with what was said under the limit."""
    print(f"Ψ = {psi:,}; a device has {limit:,} bytes = {limit / psi:.2f}Ψ\n")
    print(f"{'':22}{'device, counted':>16}    under the limit")
    for way, run in runs.items():
        print(f"{way:22}{run['held']['device']:>16,}    {run['said']}")
    held = {way: run["held"] for way, run in runs.items()}
    fig, [[ax]] = canvas(9.6, 3.6, within=(0.17, 0.99, 0.92, 0.14))
    words = []
    for row, (way, memories) in enumerate(held.items()):
        left, mine = 0.0, []
        for memory, color in MEMORIES.items():
            if nbytes := memories.get(memory, 0):
                ax.barh(row, nbytes / psi, left=left, height=0.62, color=color)
                left += nbytes / psi
                mine.append(f"{memory} {nbytes / psi:.2f}")
        ax.text(left + 0.15, row, ", ".join(mine), va="center", fontsize=8.5)
        words.append(f"{way}: {', '.join(mine)}")
    ax.axvline(limit / psi, color=RED, ls="--", lw=1.4)
    ax.text(limit / psi + 0.1, -0.78, "limit of a device", color=DARK, fontsize=8.5, va="center")
    ax.set_yticks(range(len(held)), list(held))
    ax.set(xlim=(0, 20.5), ylim=(len(held) - 0.5, -1.1), xlabel="bytes on a rank, in units of $\\Psi$")
    ax.tick_params(axis="y", length=0)
    name_colors(ax, MEMORIES, fontsize=9, loc="lower right")
    ax.set_title(title, loc="left", fontsize=10)
    show(fig, f"{title}. In bytes for each parameter: {'; '.join(words)}. The limit is {limit / psi:.2f}.")


def draw_placements(points: Sequence[tuple[int, int]], best: tuple[int, int], title: str) -> None:
    """A dot for each (bytes moved, bytes left on the device); more placements, larger dot. The best one is marked."""
    fig, [[ax]] = canvas(9.6, 3.9, within=(0.07, 0.99, 0.91, 0.13))
    count = Counter(points)
    xs, ys = zip(*count, strict=True)
    ax.scatter(xs, ys, s=[28 * number for number in count.values()], color=BLUE, alpha=0.75, lw=0)
    ax.scatter(*best, s=150, facecolor="none", edgecolor=RED, lw=2)
    ax.annotate(
        f"moves {best[0]}, leaves {best[1]}",
        best,
        (best[0] + 3.1, best[1] - 1.5),
        color=DARK,
        fontsize=9.5,
        arrowprops={"arrowstyle": "-", "color": RED},
    )
    ax.set_xlabel("bytes over the link in a step, for each parameter (a larger dot: more ways)")
    ax.set_ylabel("bytes left on the device")
    ax.set(xlim=(-1, max(xs) + 2), ylim=(-0.8, 17.5), yticks=range(0, 17, 2), xticks=range(0, max(xs) + 2, 2))
    ax.set_title(title, loc="left", fontsize=10)
    show(
        fig,
        f"{title}. {len(points)} placements at {len(count)} places: from 0 to {max(xs)} bytes moved, from {min(ys)} to"
        f" {max(ys)} left. Marked: moves {best[0]}, leaves {best[1]}; {count[best]} placement there.",
    )


def show_moves(
    runs: Sequence[Mapping[str, Any]], ways: Sequence[str], kinds: Sequence[str], psi: int
) -> dict[str, list[float]]:
    """A table of the bytes that all ranks together moved in a step, for each parameter, by kind."""
    found = {}
    print("bytes a parameter, all ranks together")
    print(f"{'':22}" + "".join(f"{kind:>16}" for kind in kinds))
    for way in ways:
        every = [pair for rank in runs for pair in rank[way]["moved"].items()]
        found[way] = [sum(nbytes for what, nbytes in every if what.startswith(kind)) / psi for kind in kinds]
        print(f"{way:22}" + "".join(f"{nbytes:>16.3g}" for nbytes in found[way]))
    print()
    return found


def draw_moves(logs: Mapping[str, Sequence[Any]], title: str) -> None:
    """What was read, updated and written when: a panel for each program, a lane for each kind."""
    longest = max(took.end for log in logs.values() for took in log)
    height = 1.55 * len(logs) + 0.7
    fig, axes = canvas(
        9.6,
        height,
        title,
        rows=len(logs),
        sharex=True,
        within=(0.08, 0.99, 1 - 0.4 / (len(logs) + 0.5), 0.34 / (len(logs) + 0.4)),
        gap=0.5,
    )
    words = []
    for ax, (name, log) in zip(axes[:, 0], logs.items(), strict=True):
        for took in log:
            lane = list(LANES).index(took.what)
            ax.barh(lane, took.end - took.begin, left=took.begin, height=0.78, color=LANES[took.what], ec="white")
            ax.text((took.begin + took.end) / 2, lane, took.number, ha="center", va="center", color=DARK, fontsize=9)
        end = max(took.end for took in log)
        ax.axvline(end, color=RED, ls="--", lw=1.2)
        ax.set_yticks(range(len(LANES)), list(LANES))
        ax.set(xlim=(0, longest + 1), ylim=(2.6, -0.6))
        ax.tick_params(axis="y", length=0)
        ax.set_title(f"{name}: {end:g}", loc="left", fontsize=9.5)
        words.append(f"{name}: {end:g} units of time, {len(log)} moves and updates")
    axes[-1, 0].set_xlabel("time, by the disk's clock")
    show(fig, f"{title}. {'; '.join(words)}.")
