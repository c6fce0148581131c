"""The pictures of lesson 17. They draw counted values, or computed ones if the title says so."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from minidist.classroom.notebook.drawing import ALL_SIDES, canvas, show
from minidist.memory.colors import BLUE, DARK, GREEN, GREY, LIGHT, ORANGE, PURPLE, RANKS, RED
from minidist.papers import deepseek_v3, deepspeed_moe, megatron, mixtral

Array = np.ndarray
LINES = ((BLUE, "-", 4.0), (RED, "-", 1.8), (ORANGE, "--", 1.8), (GREEN, ":", 2.2))  # lines may lie on one another


def bare(ax: plt.Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)


def show_sizes() -> None:
    """GPTs of 24 layers, and the same with 128 experts in every other layer, by DeepSpeed-MoE's formula."""
    for name, h, printed in (("1.3B", 2048, 52), ("350M", 1024, 13)):
        dense, mixed = megatron.parameters(51_200, 2048, h, 24), deepspeed_moe.parameters(h, experts=128)
        print(f"GPT {name}: {dense:,} parameters; with 128 experts in every other layer {mixed:,}", end="")
        print(f" (computed; printed: {printed} B), {mixed / dense:.0f} times")
    for name in ("Mixtral 8x7B", "Mixtral 8x22B"):
        of, (whole, active) = mixtral.SHAPES[name], mixtral.PRINTED[name]
        print(f"{name}: {of.parameters:,} parameters, {of.active:,} of them for a token", end="")
        print(f" (computed; printed: {whole} B and {active} B)")


def show_copies(reached: float) -> None:
    """DeepSeek-V3, 8 of 256 experts on 8 hosts: the hosts of a token, and what leaves its host."""
    of = deepseek_v3
    print(f"a token has experts on {of.hosts_reached(256, 8, 8):.2f} hosts (computed), {reached:.2f} (counted)")
    for what, copies in (
        ("for each expert", of.copies_to_experts(8, 8)),
        ("for each host", of.copies_to_hosts(256, 8, 8)),
        ("for each host, 4 hosts at most", of.most_copies(4, 8)),
    ):
        print(f"copies of a token that leave its host, one {what}: {copies:.2f} (computed)")


def draw_rows(expert: Array, queue: Array, experts: int, capacity: int, title: str) -> None:
    """Each expert's queue, from left to right: the choices that have a row, and those that are dropped."""
    fig, [[ax]] = canvas(9.6, 0.5 * experts + 1.3, hidden=ALL_SIDES)
    words = []
    for e in range(experts):
        waiting = np.flatnonzero(expert == e)
        for place in range(capacity):
            ax.add_patch(plt.Rectangle((place, e), 0.94, 0.8, fc="white", ec=GREY, lw=1))
        for choice in waiting:
            fits = queue[choice] < capacity
            ax.add_patch(plt.Rectangle((queue[choice], e), 0.94, 0.8, fc=BLUE if fits else RED, ec=DARK, lw=0.6))
            ax.text(queue[choice] + 0.47, e + 0.4, str(choice), ha="center", va="center", fontsize=9, color=DARK)
        dropped = [str(choice) for choice in waiting if queue[choice] >= capacity]
        words.append(f"expert {e} is the choice of tokens {', '.join(map(str, waiting)) or 'none'}"
                     f"{'; dropped: ' + ', '.join(dropped) if dropped else ''}.")  # fmt: skip
    ax.axvline(capacity - 0.03, color=DARK, lw=1.5)
    ax.set(xlim=(-0.1, max(int(queue.max()) + 1, capacity) + 3.2), ylim=(experts, -0.2), xticks=[])
    ax.set_yticks(np.arange(experts) + 0.4, [f"expert {e}" for e in range(experts)], fontsize=9)
    ax.tick_params(length=0)
    kinds = [Patch(fc=BLUE, ec=DARK), Patch(fc=RED, ec=DARK), Patch(fc="white", ec=GREY)]
    ax.legend(kinds, ["has a row", "dropped", "an empty row"], frameon=False, fontsize=8.5, loc="center right")
    ax.set_title(title, loc="left", fontsize=10)
    fig.tight_layout()
    show(fig, f"{title}. {' '.join(words)}")


def draw_places(slot: Array, place: Array, capacity: int, title: str) -> None:
    """Above, the rows with the choice in each; below, the choices with the row of each; lines lead from one to the
    other."""
    fig, [[ax]] = canvas(9.6, 2.9, hidden=ALL_SIDES)
    shift = (len(slot) - len(place)) / 2
    for y, numbers, begin, missing in ((0, slot, 0, "white"), (2, place, shift, RED)):
        for k, number in enumerate(numbers):
            color = BLUE if number >= 0 else missing
            ax.add_patch(plt.Rectangle((begin + k, y), 0.94, 0.6, fc=color, ec=DARK if number >= 0 else GREY, lw=0.8))
            ax.text(begin + k + 0.47, y + 0.3, str(number), ha="center", va="center", fontsize=9, color=DARK)
            ax.text(
                begin + k + 0.47, y + (0.85 if y else -0.25), str(k), ha="center", va="center", fontsize=7.5, color=GREY
            )
    for choice, row in enumerate(place):
        if row >= 0:
            ax.plot([row + 0.47, shift + choice + 0.47], [0.6, 2], color=GREY, lw=0.8)
    for e in range(len(slot) // capacity):
        ax.text((e + 0.5) * capacity, -0.75, f"rows of expert {e}", ha="center", va="center", fontsize=9)
        ax.plot([e * capacity, (e + 1) * capacity - 0.06], [-0.5, -0.5], color=DARK, lw=1)
    ax.text(-0.3, 0.3, "slot", ha="right", va="center", fontsize=10)
    ax.text(-0.3, 2.3, "place", ha="right", va="center", fontsize=10)
    ax.set(xlim=(-1.6, len(slot) + 0.2), ylim=(3.1, -1.0), xticks=[], yticks=[])
    ax.set_title(title, loc="left", fontsize=10)
    fig.tight_layout()
    show(
        fig, f"{title}. slot, the choice in each row: {slot.tolist()}. place, the row of each choice: {place.tolist()}."
    )


def draw_zipf(shares: Array, factor: float, queues: Mapping[str, Array]) -> None:
    """Left: each expert's share of all choices, and what is beyond its room. Right: the percentage of choices that is
    dropped, by capacity factor, from each choice's number in its queue."""
    factors = np.arange(0.5, 3.6, 0.25)
    rooms = [np.ceil(each * len(next(iter(queues.values()))) / len(shares)) for each in factors]
    curves = {name: [100 * float(np.mean(queue >= room)) for room in rooms] for name, queue in queues.items()}
    fig, [(left, right)] = canvas(9.6, 3.3, columns=2)
    room, places = 100 * factor / len(shares), np.arange(len(shares))
    left.bar(places, np.minimum(100 * shares, room), color=BLUE, label="has a row")
    left.bar(places, np.maximum(100 * shares - room, 0), bottom=room, color=RED, label="dropped")
    left.axhline(room, color=DARK, lw=1.2, ls="--", label=f"room: {factor:g} times the mean")
    left.set(xlabel="expert", ylabel="percent of all choices", xticks=places)
    left.legend(frameon=False, fontsize=8.5)
    left.set_title("choices that follow Zipf's law (counted)", loc="left", fontsize=9.5)
    words = [f"expert {e} gets {100 * share:.1f}% of all choices" for e, share in enumerate(shares)]
    for (name, percent), (color, dashes, width) in zip(curves.items(), LINES, strict=False):
        right.plot(factors, percent, color=color, ls=dashes, lw=width, label=name)
        words.append(
            f"{name}: {percent[0]:.0f}% dropped at factor {factors[0]:g}, {percent[-1]:.0f}% at {factors[-1]:g}"
        )
    right.set(xlabel="capacity factor", ylabel="percent of choices dropped", ylim=(0, None))
    right.legend(frameon=False, fontsize=8.5)
    right.set_title("what room costs, and saves", loc="left", fontsize=9.5)
    fig.tight_layout()
    show(fig, f"Choices by expert, with room for {factor:g} times the mean. {'; '.join(words)}.")


def draw_training(runs: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str, window: int = 10) -> None:
    """For each run the percentage of dropped choices, and the loss, over the steps: means of `window` steps."""
    fig, [axes] = canvas(9.6, 3.2, title, columns=2)
    words = []
    for number, (ax, what) in enumerate(zip(axes, ("percent of choices dropped", "loss"), strict=True)):
        for (name, run), color in zip(runs.items(), (RED, ORANGE, GREEN, BLUE), strict=False):
            values = np.mean(np.reshape(run[number], (-1, window)), axis=1)
            ax.plot(np.arange(window, len(run[number]) + 1, window), values, color=color, lw=2, label=name)
            words.append(f"{what}, {name}: from {values[0]:.3g} to {values[-1]:.3g}.")
        ax.set(xlabel="step", ylabel=what, ylim=(0, None))
    axes[1].legend(frameon=False, fontsize=8.5)
    fig.tight_layout()
    show(fig, f"{title}. {' '.join(words)}")


def draw_way(before: Sequence[Array], after: Sequence[Array], title: str) -> None:
    """Rows on each rank before dispatch and after it. before, after: of each rank (rows, 2), the rank from which a row
    comes and its expert."""
    n = len(before)
    fig, [axes] = canvas(9.6, 0.55 * n + 1.5, title, columns=2, hidden=ALL_SIDES)
    words = []
    for ax, name, ranks in zip(axes, ("before dispatch", "after it"), (before, after), strict=True):
        for rank, rows in enumerate(ranks):
            for place, (source, expert) in enumerate(np.asarray(rows, int)):
                ax.add_patch(plt.Rectangle((place, rank), 0.94, 0.8, fc=RANKS[source], ec=DARK, lw=0.6))
                ax.text(place + 0.47, rank + 0.4, str(expert), ha="center", va="center", fontsize=8, color=DARK)
            order = " ".join(f"{expert}" for _, expert in np.asarray(rows, int))
            words.append(f"{name}, rank {rank} has rows for the experts {order}.")
        ax.set(xlim=(-0.1, max(map(len, ranks)) + 0.1), ylim=(n, -0.1), xticks=[])
        ax.set_yticks(np.arange(n) + 0.4, [f"rank {rank}" for rank in range(n)], fontsize=9)
        ax.tick_params(length=0)
        ax.set_title(f"{name} (numbers: experts)", loc="left", fontsize=9.5)
    kinds = [Patch(fc=RANKS[rank], ec=DARK) for rank in range(n)]
    names = [f"a token of rank {rank}" for rank in range(n)]
    fig.legend(kinds, names, frameon=False, fontsize=8.5, ncols=n, loc="lower center")
    fig.tight_layout(rect=(0, 0.08, 1, 1))
    show(fig, f"{title}. {' '.join(words)}")


def draw_load(filled: Sequence[int], room: int, dropless: Sequence[int], title: str) -> float:
    """The rows that each rank's experts compute: with buffers of fixed size, filled or not, and with all choices.
    Returns what the busiest rank has of the latter, in means."""
    fig, [[ax]] = canvas(9.6, 3.2)
    places = np.arange(len(filled))
    ax.bar(places - 0.2, filled, 0.36, color=BLUE, label="fixed buffers: filled rows")
    empty = [room - rows for rows in filled]
    buffers = ax.bar(places - 0.2, empty, 0.36, bottom=filled, color=LIGHT, label="fixed buffers: empty rows")
    everything = ax.bar(places + 0.2, dropless, 0.36, color=PURPLE, label="no choice is dropped")
    for bars, rows in ((buffers, [room] * len(filled)), (everything, dropless)):
        ax.bar_label(bars, rows, padding=-13, fontsize=8.5, color=DARK)  # inside: the mean's line is above some bars
    ax.axhline(np.mean(dropless), color=DARK, lw=1, ls="--", zorder=0, label="the mean without drops")
    ax.set_xticks(places, [f"rank {rank}" for rank in places])
    ax.set_ylabel("rows of a rank's experts")
    ax.legend(frameon=False, fontsize=8.5)
    ax.set_title(title, loc="left", fontsize=10)
    fig.tight_layout()
    words = [f"rank {rank}: {room} rows, {rows} of them filled; without drops {more}."
             for rank, (rows, more) in enumerate(zip(filled, dropless, strict=True))]  # fmt: skip
    show(fig, f"{title}. {' '.join(words)}")
    return float(max(dropless) / np.mean(dropless))


def draw_runs(panels: Mapping[str, Mapping[str, Sequence[float]]], title: str) -> None:
    """A panel for each name, with the loss of each program over the steps."""
    fig, axes = canvas(9.6, 3.0, title, columns=len(panels))
    words = []
    for ax, (what, lines) in zip(axes[0], panels.items(), strict=True):
        for (name, values), (color, dashes, width) in zip(lines.items(), LINES, strict=False):
            ax.plot(range(1, len(values) + 1), values, color=color, ls=dashes, lw=width, label=name)
            words.append(f"{what}, {name}: from {values[0]:.3f} to {values[-1]:.3f}.")
        ax.set(xlabel="step", ylabel="loss")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_title(what, loc="left", fontsize=9.5)
    axes[0, 0].legend(frameon=False, fontsize=8.5)
    fig.tight_layout()
    show(fig, f"{title}. {' '.join(words)}")
