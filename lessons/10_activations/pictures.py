"""The pictures and tables of lesson 10. They show what was counted."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from minidist.classroom.notebook.drawing import canvas, show
from minidist.memory.colors import BLUE, DARK, GREY, ORANGE, PURPLE, QUANTITIES, RED

Array = np.ndarray
CORE = 5, 6, 7  # of NAMES: what is made from q and k, and can be made again
NAMES = [
    *[("input of norm 1", "input"), ("  mean", "small"), ("  deviation", "small")],
    *[("input of qkv", "factor"), ("q | k | v", "factor")],
    *[("softmax's output", "output"), ("what dropout leaves of it", "factor"), ("its mask", "mask")],
    *[("input of the projection", "factor"), ("mask of dropout 1", "mask")],
    *[("input of norm 2", "input"), ("  mean", "small"), ("  deviation", "small")],
    *[("input of up", "factor"), ("input of gelu", "input"), ("input of down", "factor")],
    ("mask of dropout 2", "mask"),
]


def print_arrays(arrays: Sequence[Array], sbh: int) -> None:
    """The arrays that a layer keeps, in the order in which it makes them: why each is kept, and its bytes."""
    print(f"{'array':27}{'why':8}{'shape':>20}{'dtype':>9}{'bytes':>11}{'/ sbh':>7}")
    for (what, why), array in zip(NAMES, arrays, strict=True):
        size = array.nbytes
        print(f"{what:27}{why:8}{array.shape!s:>20}{array.dtype!s:>9}{size:>11,}{size / sbh:>7.2g}")


def draw_arrays(arrays: Sequence[Array], sbh: int, title: str) -> None:
    """The arrays that a layer keeps, except the small ones, in the order in which it makes them: a bar each."""
    kept = enumerate(zip(NAMES, arrays, strict=True))
    rows = [(i in CORE, what, array) for i, ((what, why), array) in kept if why != "small"]
    fig, [[ax]] = canvas(9.6, 4.9, within=(0.27, 0.98, 0.93, 0.1))
    for place, (core, _, array) in enumerate(rows):
        size = array.nbytes / sbh
        ax.barh(
            place, size, height=0.68, color=QUANTITIES["activations"], hatch="///" if core else None, edgecolor=DARK
        )
        ax.text(size + 0.3, place, f"{size:g}  ({array.dtype})", va="center", fontsize=8.5)
    looks = {"facecolor": QUANTITIES["activations"], "edgecolor": DARK}
    labels = ((None, "kept"), ("///", "kept: the core of attention"))
    patches = [plt.Rectangle((0, 0), 1, 1, hatch=hatch, label=label, **looks) for hatch, label in labels]
    ax.set(yticks=range(len(rows)), yticklabels=[what for _, what, _ in rows], xlabel="bytes / sbh")
    ax.set(xlim=(0, 1.2 * max(array.nbytes / sbh for *_, array in rows)), ylim=(len(rows) - 0.5, -0.5))
    ax.legend(handles=patches, frameon=False, fontsize=9, loc="lower right")
    ax.set_title(title, loc="left", fontsize=10)
    words = ", ".join(f"{what} {array.nbytes / sbh:g}" for _, what, array in rows)
    show(fig, f"{title}. In bytes for each of the s·b·h numbers of a layer's input: {words}.")


def print_checkpoints(n: int, everything: Sequence[int], by_k: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The most values held, and the number of calls of a layer, by interval. Returns the most values held."""
    print(f"{'':10}{'computed k + ⌈n/k⌉':>20}{'counted':>9}{'calls':>7}")
    print(f"{'all kept':10}{n + 1:>20}{max(everything):>9}{len(everything):>7}")
    for k, held in by_k.items():
        print(f"{f'k = {k}':10}{k + -(-n // k):>20}{max(held):>9}{len(held):>7}")
    return {k: max(held) for k, held in by_k.items()}


def print_both(yours: tuple[Any, ...], lessons: tuple[Any, ...]) -> None:
    """Compares (functions, values held, percentage by which the gradient is off): yours, and the lesson's own."""
    print(f"{'':30}{'with yours':>12}{'the lesson':>12}")
    print(f"{'values held at most':30}{max(yours[1]):>12}{max(lessons[1]):>12}")
    print(f"{'the gradient is off by, in %':30}{yours[2]:>12.4f}{lessons[2]:>12.4f}")
    for chain in ((96, 2, 114), (48, 2, 34)):
        words = "{} layers of {} and {}: k".format(*chain)
        print(f"{words:30}" + "".join(f"{of[0]['best_interval'](*chain):>12}" for of in (yours, lessons)))


def draw_memory(runs: Mapping[str, Sequence[int]], title: str) -> None:
    """The number of values held after each call of a layer, forward and backward: a line for each run."""
    fig, [[ax]] = canvas(9.6, 3.9, within=(0.07, 0.72, 0.91, 0.13))
    words = []
    styles = [(GREY, "-"), (RED, "--"), (ORANGE, "-"), (PURPLE, "-")]
    for (color, dashes), (name, held) in zip(styles, runs.items(), strict=False):
        peak = max(held)
        ax.plot(
            np.arange(1, len(held) + 1),
            held,
            color=color,
            ls=dashes,
            lw=1.8,
            label=f"{name}: {peak} at most",
            zorder=3 if dashes == "--" else 2,
        )
        words.append(f"{name}: {len(held)} calls, {peak} values at most, first so at call {held.index(peak) + 1}.")
    ax.set(xlabel="time: calls of a layer, forward and backward", ylabel="values held", ylim=(0, None), xlim=(0, None))
    ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.set_title(title, loc="left", fontsize=10)
    show(fig, f"{title}. {' '.join(words)}")


def held_at_most(n: int, given: int, layer: int) -> list[int]:
    """For segments of k = 1, 2, ..., n of n layers: all segments' inputs plus the activations of one segment."""
    return [-(-n // k) * given + k * layer for k in range(1, n + 1)]


def draw_intervals(held: Mapping[str, Sequence[float]], unit: str, title: str) -> None:
    """What is held with each interval k = 1, 2, ...: a panel for each kind of layer, with the least one marked."""
    fig, axes = canvas(9.6, 3.2, title, columns=len(held), within=(0.08, 0.99, 0.82, 0.16), gap=0.22)
    words = []
    for ax, (name, sizes) in zip(axes[0], held.items(), strict=True):
        least = int(np.argmin(sizes))
        ax.plot(np.arange(1, len(sizes) + 1), sizes, color=PURPLE, lw=1.8, label="held at most")
        ax.plot([least + 1], [sizes[least]], "o", color=RED, label="least")
        ax.annotate(
            f"k = {least + 1}",
            (least + 1, sizes[least]),
            (least + 3, sizes[least] + 0.12 * max(sizes)),
            color=DARK,
            fontsize=9,
            ha="center",
        )
        ax.set(xlabel="k: layers of a segment", ylim=(0, 1.05 * max(sizes)), xlim=(0, len(sizes) + 1))
        ax.set_title(name, fontsize=9.5)
        words.append(f"{name}: least at k = {least + 1}, {sizes[least]:.3g}; at k = 1 {sizes[0]:.3g}.")
    axes[0, 0].set_ylabel(unit)
    axes[0, -1].legend(frameon=False, fontsize=9, loc="lower right")
    show(fig, f"{title}, in {unit}. {' '.join(words)}")


def draw_derivatives(pairs: Mapping[str, tuple[Any, Any]]) -> None:
    """Derivatives by finite differences and from a program: where both agree, the point is on the diagonal."""
    fig, axes = canvas(9.6, 4.2, columns=len(pairs), within=(0.09, 0.99, 0.92, 0.12), gap=0.25)
    words = []
    largest = 1.1 * max(np.abs(both).max() for both in pairs.values())
    for ax, (name, (differences, found)) in zip(axes[0], pairs.items(), strict=True):
        ax.plot([-largest, largest], [-largest, largest], color=GREY, lw=1, label="both equal")
        ax.plot(
            differences,
            found,
            ".",
            label="a parameter",
            color=BLUE if np.allclose(differences, found, atol=1e-6) else RED,
        )
        off = np.linalg.norm(found - differences) / np.linalg.norm(differences)
        ax.set(xlabel="by a finite difference", ylabel="from the backward", xlim=(-largest, largest))
        ax.set(ylim=(-largest, largest), title=name)
        ax.title.set_fontsize(10)
        ax.locator_params(nbins=5)
        ax.legend(frameon=False, fontsize=9, loc="upper left")
        words.append(f"{name}: {len(differences)} derivatives, {100 * off:.0f}% off.")
    show(fig, "Some derivatives by finite differences, and from the backward (counted). " + " ".join(words))


def draw_losses(curves: Mapping[str, Sequence[float]], title: str) -> None:
    """Losses of training: for each step the mean with up to five neighbors on either side."""
    fig, [[ax]] = canvas(9.6, 2.9, within=(0.07, 0.98, 0.9, 0.17))
    words = []
    for (color, dashes), (name, losses) in zip([(BLUE, "-"), (RED, "--")], curves.items(), strict=False):
        smooth = [np.mean(losses[i - min(i, 5) : i + min(i, 5) + 1]) for i in range(len(losses))]
        ax.plot(np.arange(1, len(losses) + 1), smooth, color=color, ls=dashes, lw=1.8, label=name)
        words.append(f"{name}: from {losses[0]:.2f} to {smooth[-1]:.2f}.")
    ax.set(xlabel="step", ylabel="loss, mean of 11 steps", ylim=(0, None), xlim=(0, None))
    ax.legend(frameon=False, fontsize=9)
    ax.set_title(title, loc="left", fontsize=10)
    show(fig, f"{title}. {' '.join(words)}")
