"""The pictures and tables of lesson 07. They show what the ranks returned."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minidist.classroom.notebook.drawing import ALL_SIDES, canvas, show
from minidist.memory.colors import BLUE, DARK, GREY, LIGHT, ORANGE, QUANTITIES, RANKS
from minidist.papers.zero import TABLE_1

Array = np.ndarray
KINDS = ("parameters", "master copy", "first moment", "second moment")
PHASES = {
    "all-reduce gradients": QUANTITIES["gradients"],
    "reduce-scatter gradients": QUANTITIES["bucket"],
    "all-gather parameters": QUANTITIES["parameters"],
    "norm": GREY,
}


def draw_held(shards: Sequence[Sequence[Any]], units: Sequence[Any], title: str = "") -> None:
    """Which part of the first unit's arrays each rank holds: looks for shards[rank][0] in units[0]."""
    found = [dict(zip(KINDS, of_rank[0], strict=True)) for of_rank in shards]
    whole = dict(zip(KINDS, units[0], strict=True))
    fig, [axes] = canvas(
        10, 2.8, columns=len(whole), hidden=ALL_SIDES, sharey=True, within=(0.07, 0.98, 0.8, 0.2), gap=0.22
    )
    words = []
    for ax, (kind, everything) in zip(axes, whole.items(), strict=True):
        ends = []
        for rank, of_rank in enumerate(found):
            mine = of_rank[kind]
            places = range(everything.size - mine.size + 1)
            start = next(at for at in places if np.array_equal(everything[at : at + mine.size], mine))
            ax.barh(rank, everything.size, height=0.7, color=LIGHT)
            ax.barh(rank, mine.size, left=start, height=0.7, color=RANKS[rank])
            ends.append(f"rank {rank} {start} to {start + mine.size}")
        ax.set_title(f"{kind}, {everything.itemsize} bytes each", loc="left", fontsize=9.5)
        ax.set(xlim=(0, everything.size), xticks=np.linspace(0, everything.size, 5), ylim=(len(found) - 0.5, -0.5))
        ax.tick_params(length=0, labelsize=9)
        ax.set_xlabel("index in the Flat", fontsize=9)
        words.append(f"{kind}: {', '.join(ends)}")
    axes[0].set_yticks(range(len(found)), [f"rank {rank}" for rank in range(len(found))])
    fig.suptitle(f"{title} Gray: not held.", x=0.01, ha="left", fontsize=11, fontweight="bold")
    show(fig, f"{title} From which number to which. {'; '.join(words)}.")


def draw_traffic(programs: Mapping[str, Mapping[str, int]], one_way: float, title: str = "") -> None:
    """What a rank sends in a step: programs[name][phase], in bytes. one_way: the bytes of Ψ(N-1)/N numbers."""
    fig, [[ax]] = canvas(10, 0.95 + 0.5 * len(programs), title, bold=True)
    words = []
    for row, (name, phases) in enumerate(programs.items()):
        left = 0.0
        shares = {phase: nbytes / one_way for phase, nbytes in phases.items()}
        for phase, sent in shares.items():
            ax.barh(row, sent, left=left, height=0.66, color=PHASES[phase], edgecolor="white")
            if sent > 0.2:
                ax.text(left + sent / 2, row, phase, ha="center", va="center", color=DARK, fontsize=9)
            left += sent
        words.append(f"{name}: " + ", ".join(f"{phase} {sent:.2f}" for phase, sent in shares.items()))
    longest = max(sum(phases.values()) for phases in programs.values()) / one_way
    ax.set_yticks(range(len(programs)), list(programs))
    ax.set_xticks(np.arange(0, longest + 0.5, 0.5))
    ax.set(xlim=(0, 1.02 * longest), ylim=(len(programs) - 0.5, -0.5), xlabel="sent, in units of $\\Psi\\,(N-1)/N$")
    ax.tick_params(axis="y", length=0)
    height = fig.get_size_inches()[1]
    fig.subplots_adjust(left=0.14, right=0.99, top=1 - 0.33 / height, bottom=0.5 / height)
    show(fig, f"{title} What the rank sends, in units of psi times (N-1)/N. {'; '.join(words)}.")


def draw_memory(counted: Mapping[int, float]) -> None:
    """Bytes a parameter on each of N ranks: the formula, what was counted, and what the paper's table prints."""
    fig, [[ax]] = canvas(8, 3.3, within=(0.09, 0.98, 0.97, 0.16))
    every = np.geomspace(1, 1024, 200)
    ax.plot(every, 4 + 12 / every, color=BLUE, lw=1.6, zorder=1, label=r"$4 + 12/N$ (computed)")
    ax.scatter(counted.keys(), counted.values(), s=40, color=BLUE, zorder=3, label="counted")
    printed = {n: float(row[0].printed) / 7.5 for n, row in TABLE_1["7.5B"].items()}
    ax.scatter(
        printed.keys(), printed.values(), s=95, facecolor="none", edgecolor=ORANGE, lw=1.6, zorder=2, label="printed"
    )
    ax.axhline(4, color=GREY, ls="--", lw=1.2, zorder=0)
    ax.text(1024, 3.2, "4: parameters and gradients, on every rank", ha="right", va="top", color=DARK, fontsize=9)
    ax.set_xscale("log", base=2)
    ticks = [1, 2, 4, 16, 64, 256, 1024]
    ax.set_xticks(ticks, [str(n) for n in ticks])
    ax.set(xlabel="ranks $N$", ylabel="bytes a parameter", ylim=(0, 17))
    ax.legend(frameon=False, loc="upper right")
    words = ", ".join(f"{held:.2f} with {n}" for n, held in counted.items())
    show(
        fig,
        "Bytes a parameter on each of N ranks, for 1 to 1024 ranks: the line of 4 + 12/N falls from 16 towards 4, and"
        f" hardly falls any more after 16 ranks. The counted dots lie on it: {words}. So do the figures of the paper's"
        " table 1, divided by 7.5 billion.",
    )


# ---- tables ----------------------------------------------------------------------------------------------------------


def print_held(held: Mapping[str, int], psi: int) -> None:
    """The bytes that rank 0 holds, by kind."""
    print(f"Ψ = {psi:,} parameters; rank 0 holds:")
    print("  ", ", ".join(f"{kind} {n:,} bytes = {n / psi:g}Ψ" for kind, n in held.items()))


def print_traffic(programs: Mapping[str, Mapping[str, int]]) -> None:
    """The bytes that a rank sends in a step, in total and by phase."""
    for name, by_phase in programs.items():
        phases = ", ".join(f"{phase} {nbytes:,}" for phase, nbytes in by_phase.items())
        print(f"{name:17}{sum(by_phase.values()):>7,} bytes: {phases}")


def print_memory(counted: Mapping[int, float]) -> None:
    """Bytes a parameter on each of N ranks: counted, by formula, and the paper's Table 1."""
    print(f"{'N':>5}{'bytes a parameter':>20}{'4 + 12/N':>11}{'at 7.5 B':>12}{'Table 1':>11}")
    print(f"{'':5}{'counted':>20}{'computed':>11}{'computed':>12}{'printed':>11}")
    for n in (1, 2, 4, 16, 64, 256, 1024):
        found = f"{counted[n]:.3f}" if n in counted else ""
        printed = f"{TABLE_1['7.5B'][n][0].printed} GB" if n in TABLE_1["7.5B"] else ""
        print(f"{n:>5}{found:>20}{4 + 12 / n:>11.3f}{7.5 * (4 + 12 / n):>9.1f} GB{printed:>11}")
    print()


def print_tried(alone: Sequence[float], memory: Mapping[str, int], tried: Mapping[str, Any], size: int) -> None:
    """The last loss and the memory of one process, and of rank 0 in each program, with a step's norm and bytes."""
    print(f"{'in float64':15}{'last loss':>11}{'norm applied':>14}{'bytes sent':>12}   bytes a parameter, held")
    rows = [("one process", alone[-1], "-", 0, memory)]
    rows += [
        (name, run["losses"][-1], run["applied"], sum(run["sent"].values()), run["memory"])
        for name, run in tried.items()
    ]
    for name, loss, applied, sent, held in rows:
        each = ", ".join(f"{kind} {held[kind] / size:g}" for kind in ("parameters", "gradients", "optimizer"))
        print(f"{name:15}{loss:>11.6f}{applied:>14.8}{sent:>12,}   {each}")


def print_first_steps(broken: Mapping[str, Mapping[str, Any]]) -> None:
    """The first step of each program: the norm after clipping, and how far two units' parameters moved."""
    print(f"\n{'first step':24}{'norm applied':>14}{'embedding moved':>17}{'block0 moved':>14}")
    for optimizer, runs in broken.items():
        for name, run in runs.items():
            applied, moved = run["applied"], run["moved"]
            print(f"{optimizer:10}{name:14}{applied:>14.4f}{moved['embedding']:>17.5f}{moved['block0']:>14.5f}")
    print()
