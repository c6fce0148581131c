"""The pictures and tables of lesson 06. They show what was counted."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minidist.classroom.notebook.drawing import ALL_SIDES, canvas, show
from minidist.memory.colors import BLUE, DARK, GREY, ORANGE, QUANTITIES, RED

Array = np.ndarray
STATES = {  # the quantity that gives the color, and how strong it is
    "parameter": ("parameters", 1.0),
    "gradient": ("gradients", 1.0),
    "master copy": ("optimizer", 1.0),
    "first moment": ("optimizer", 0.7),
    "second moment": ("optimizer", 0.45),
}


def draw_bytes(formats: Mapping[str, Mapping[str, float]]) -> None:
    """Bytes per parameter: a bar for each setting, with a piece for each array."""
    fig, [[ax]] = canvas(9.6, 0.62 * len(formats) + 1.1, hidden=ALL_SIDES, within=(0.12, 0.99, 0.88, 0.22))
    words, seen = [], set()
    for place, (name, kinds) in enumerate(formats.items()):
        left = 0.0
        for kind, size in kinds.items():
            quantity, alpha = STATES[kind]
            look = {"color": QUANTITIES[quantity], "alpha": alpha}
            ax.barh(place, size, left=left, height=0.6, edgecolor="white", **look)
            ax.text(left + size / 2, place, f"{size:g}", ha="center", va="center", color=DARK, fontsize=9)
            if kind not in seen:
                seen.add(kind)
                ax.plot([], [], "s", label=kind, **look)
            left += size
        ax.text(left + 0.15, place, f"{left:g}", va="center", fontsize=10, fontweight="bold")
        words.append(f"{name}: {', '.join(f'{kind} {size:g}' for kind, size in kinds.items())}, {left:g} in total.")
    ax.set_yticks(range(len(formats)), list(formats))
    ax.invert_yaxis()
    ax.set(xlim=(0, 18), xticks=[])
    ax.tick_params(length=0)
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, -0.3), ncols=5, frameon=False, fontsize=8.5)
    ax.set_title("Bytes of each parameter in training with Adam (counted)", loc="left", fontsize=10)
    show(fig, f"Bytes of each parameter in training with Adam (counted). {' '.join(words)}")


def draw_exponents(gradients: Mapping[str, Array]) -> None:
    """How large numbers are, in powers of two: a panel for each array. Numbers that float16 cannot hold are red."""
    fig, axes = canvas(9.6, 1.7 * len(gradients) + 0.6, rows=len(gradients), sharex=True)
    powers, words = np.arange(-44, 22), []
    for ax, (name, gradient) in zip(axes[:, 0], gradients.items(), strict=True):
        size = np.abs(gradient[gradient != 0]).astype(np.float64)
        of_each = np.floor(np.log2(size)).astype(int)
        share = np.array([100 * np.mean(of_each == power) for power in powers])
        # Half of the smallest number, 2⁻²⁵, is rounded to it or to zero; 65,520 = 2¹⁶ - 16 is rounded to infinity.
        lost = (powers < -25) | (powers >= 16)
        ax.axvspan(-44.5, -25.5, color=RED, alpha=0.09, lw=0)
        ax.axvspan(15.5, 21.5, color=RED, alpha=0.09, lw=0)
        ax.bar(powers[~lost], share[~lost], color=BLUE, width=0.85, label="float16 holds it")
        ax.bar(powers[lost], share[lost], color=RED, width=0.85, label="becomes zero or infinite")
        zero, infinite = 100 * np.mean(size <= 2.0**-25), 100 * np.mean(size >= 65520)
        ax.set_title(f"{name}: {zero:.3f}% become zero, {infinite:.3g}% infinite", loc="left", fontsize=9.5)
        ax.set(xlim=(-44.5, 21.5), ylabel="% of numbers")
        ax.yaxis.label.set_fontsize(8)
        ax.tick_params(axis="y", labelsize=8)
        words.append(
            f"{name}: most are near 2^{powers[share.argmax()]}; {zero:.3f}% become zero, {infinite:.3g}% infinite."
        )
    last = axes[-1, 0]
    last.set_xticks([-40, -32, -24, -14, 0, 15], ["2⁻⁴⁰", "2⁻³²", "2⁻²⁴", "2⁻¹⁴", "1", "2¹⁵"])
    last.set_xlabel("size of a number", fontsize=9)
    axes[0, 0].legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.62, 1.0))
    fig.tight_layout()
    show(fig, f"How large gradients are, by powers of two, and what float16 cannot hold. {' '.join(words)}")


def draw_scale(scales: Mapping[str, Sequence[float]], skipped: Sequence[int], title: str) -> None:
    """The loss scale in steps 1, 2, ...: a line for each rule. Skipped steps are marked."""
    fig, [[ax]] = canvas(9.6, 2.7)
    words = []
    for color, width, (name, found) in zip((BLUE, ORANGE), (4.5, 1.6), scales.items(), strict=False):
        ax.step(range(1, len(found) + 1), np.log2(found), where="mid", color=color, lw=width, label=name)
        words.append(f"{name}: from 2^{np.log2(found[0]):g} to 2^{np.log2(found[-1]):g}.")
    first = np.log2(next(iter(scales.values())))
    ax.plot(skipped, first[np.array(skipped, int) - 1], "x", color=RED, ms=8, mew=2, label="step skipped", zorder=3)
    low, high = int(first.min()) - 1, int(first.max()) + 1
    ax.set_yticks(range(low, high + 1, 2), [f"$2^{{{power}}}$" for power in range(low, high + 1, 2)])
    ax.set_xlabel("time: steps", fontsize=9)
    ax.set_ylabel("loss scale", fontsize=9)
    ax.legend(frameon=False, fontsize=9)
    ax.set_title(title, loc="left", fontsize=10)
    fig.tight_layout()
    steps = ", ".join(map(str, skipped))
    show(fig, f"{title}. {' '.join(words)} Steps that were skipped: {steps or 'none'}.")


def draw_pieces(found: Mapping[str, Sequence[Array]], wanted: Array) -> None:
    """The final first weight of each rank's piece, next to the right one: a panel for each program."""
    fig, axes = canvas(9.6, 2.8, columns=len(found), sharey=True)
    ranks, words = range(len(wanted)), []
    for ax, (name, of_ranks) in zip(axes[0], found.items(), strict=True):
        values = [of_rank[0] for of_rank in of_ranks]
        ax.bar(np.array(ranks) - 0.2, wanted, 0.38, color=GREY, label="wanted")
        ax.bar(np.array(ranks) + 0.2, values, 0.38, color=BLUE, label="found")
        ax.set_xticks(list(ranks), [f"rank {rank}" for rank in ranks])
        ax.set_title(name, loc="left", fontsize=10)
        pairs = ", ".join(f"rank {rank} {values[rank]:.3f} for {wanted[rank]:.3f}" for rank in ranks)
        words.append(f"{name}: {pairs}.")
    axes[0, 0].set_ylabel("first weight of its piece", fontsize=9)
    axes[0, 0].legend(frameon=False, fontsize=9, loc="upper left")
    fig.tight_layout()
    show(fig, f"The first weight of each rank's piece after the last step, found and wanted. {' '.join(words)}")


# ---- tables ----------------------------------------------------------------------------------------------------------


def print_shares(shares: Mapping[str, Mapping[int, float]]) -> None:
    """shares[gradient][scale]: the percentage of numbers that become zero."""
    print(f"{'become zero at scale':34}" + "".join(f"{scale:>11,}" for scale in next(iter(shares.values()))))
    for name, by_scale in shares.items():
        print(f"{name:34}" + "".join(f"{share:10.4f}%" for share in by_scale.values()))
    print()


def print_bytes(held: Mapping[str, Mapping[str, int]], psi: int) -> None:
    """held[setting][kind]: the bytes of a model's arrays."""
    print(f"Ψ = {psi:,} parameters; bytes held (counted):\n")
    print(f"{'':8}{'parameters':>12}{'gradients':>12}{'optimizer':>12}{'total':>12}{'for each parameter':>21}")
    for name, sizes in held.items():
        total = sum(sizes.values())
        print(f"{name:8}{''.join(f'{size:12,}' for size in sizes.values())}{total:12,}{total / psi:21g}")


def print_stuck(stuck: Mapping[str, tuple[float, Array, Sequence[float]]]) -> None:
    """The percentage of weights that the last step does not move, the gains that are still 1, and the last loss."""
    print(f"{'weights stored in':18}{'do not move':>13}{'gains still 1.0':>17}{'loss at step 20':>17}")
    for name, (share, gains, losses) in stuck.items():
        print(f"{name:18}{share:12.1f}%{np.sum(gains == 1):>10} of {gains.size}{losses[-1]:17.4f}")
    print()


def print_late(late: Mapping[tuple[str, str], tuple[float, Sequence[float]]]) -> None:
    """For each optimizer and program: how far the weights moved in all, and the first and the last loss."""
    print(f"{'':8}{'':12}{'distance moved':>16}{'loss, step 1':>15}{'step 20':>10}")
    for (name, kind), (moved, losses) in late.items():
        program = "broken" if kind == "ClipsScaled" else "right"
        print(f"{name:8}{program:12}{moved:16.6f}{losses[0]:15.3f}{losses[-1]:10.3f}")


def print_formats(rows: Mapping[str, Sequence[Any]], stuck: Mapping[str, Sequence[Any]]) -> None:
    """For each two-byte format: where it begins to skip whole numbers, its range, and what training loses in it."""
    head = ("n + 1 is n from", "65,520 is inf", "logits lost", "weights that do not move")
    print(" " * 10 + "".join(f"{words:>{len(words) + 2}}" for words in head))
    for name, (whole, infinite, lost) in rows.items():
        print(f"{name:10}{whole:17,}{infinite!s:>15}{lost:12.3f}%{stuck[f'{name} alone'][0]:25.1f}%")


def print_runs(runs: Mapping[str, tuple[Sequence[float], Sequence[int]]]) -> None:
    """Some losses of each run, and the steps that were skipped."""
    steps = (1, 5, 10, 15, 20, 25, 30)
    print("step           " + "".join(f"{step:9}" for step in steps))
    for name, (losses, skipped) in runs.items():
        print(f"{name:15}" + "".join(f"{losses[step - 1]:9.4f}" for step in steps))
        print(f"{'':15}skipped: {skipped}")
