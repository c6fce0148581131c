"""The pictures of lesson 10. They draw what was counted."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from minidist.classroom.lesson import show

BLUE, ORANGE, GREEN, RED, GREY = "#3b6ea8", "#d99a2b", "#5a9e6f", "#b5524a", "#9a9a9a"


def draw_arrays(rows: Sequence[tuple[str, str, float]], title: str) -> None:
    """The arrays that a layer keeps, in the order in which it makes them: a bar each, (what, dtype, bytes / sbh)."""
    fig, ax = plt.subplots(figsize=(9.6, 4.9))
    places = np.arange(len(rows))[::-1]
    sizes = [size for *_, size in rows]
    core = ("softmax", "what dropout leaves", "its mask")
    ax.barh(places, sizes, height=0.68, color=[RED if what.startswith(core) else BLUE for what, *_ in rows])
    for place, (_, dtype, size) in zip(places, rows, strict=True):
        ax.text(size + 0.3, place, f"{size:g}  ({dtype})", va="center", fontsize=8.5)
    ax.set(yticks=places, yticklabels=[what for what, *_ in rows], xlim=(0, 1.2 * max(sizes)), xlabel="bytes / sbh")
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(title, loc="left", fontsize=10)
    fig.subplots_adjust(left=0.27, right=0.98, top=0.93, bottom=0.1)
    words = ", ".join(f"{what} {size:g}" for what, _, size in rows)
    show(fig, f"{title}. In bytes for each of the s·b·h numbers of a layer's input: {words}.")


def draw_memory(runs: Mapping[str, Sequence[int]], title: str) -> None:
    """How many values are held after each call of a layer, forward and backward; a line for each run."""
    fig, ax = plt.subplots(figsize=(9.6, 3.9))
    words = []
    styles = [(GREY, "-"), (RED, "--"), (ORANGE, "-"), (BLUE, "-")]
    for (colour, dashes), (name, held) in zip(styles, runs.items(), strict=False):
        peak = max(held)
        ax.plot(
            np.arange(1, len(held) + 1),
            held,
            color=colour,
            ls=dashes,
            lw=1.8,
            label=f"{name}: {peak} at most",
            zorder=3 if dashes == "--" else 2,
        )
        words.append(f"{name}: {len(held)} calls, {peak} values at most, first so at call {held.index(peak) + 1}.")
    ax.set(xlabel="calls of a layer, forward and backward", ylabel="values held", ylim=(0, None), xlim=(0, None))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.set_title(title, loc="left", fontsize=10)
    fig.subplots_adjust(left=0.07, right=0.72, top=0.91, bottom=0.13)
    show(fig, f"{title}. {' '.join(words)}")


def held_at_most(n: int, given: int, layer: int) -> list[int]:
    """With segments of k = 1, 2, ..., n of n layers: the inputs of all segments, and what the layers of one keep."""
    return [-(-n // k) * given + k * layer for k in range(1, n + 1)]


def draw_intervals(held: Mapping[str, Sequence[float]], unit: str, title: str) -> None:
    """What is held with each interval k = 1, 2, ...; a panel for each kind of layer, the least one marked."""
    fig, axes = plt.subplots(1, len(held), figsize=(9.6, 3.2), squeeze=False)
    words = []
    for ax, (name, sizes) in zip(axes[0], held.items(), strict=True):
        least = int(np.argmin(sizes))
        ax.plot(np.arange(1, len(sizes) + 1), sizes, color=BLUE, lw=1.8)
        ax.plot([least + 1], [sizes[least]], "o", color=RED)
        ax.annotate(
            f"k = {least + 1}",
            (least + 1, sizes[least]),
            (least + 3, sizes[least] + 0.12 * max(sizes)),
            color=RED,
            fontsize=9,
            ha="center",
        )
        ax.set(xlabel="k: layers of a segment", ylim=(0, 1.05 * max(sizes)), xlim=(0, len(sizes) + 1))
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_title(name, fontsize=9.5)
        words.append(f"{name}: least at k = {least + 1}, {sizes[least]:.3g}; at k = 1 {sizes[0]:.3g}.")
    axes[0, 0].set_ylabel(unit)
    fig.suptitle(title, x=0.01, ha="left", fontsize=10)
    fig.subplots_adjust(left=0.08, right=0.99, top=0.82, bottom=0.16, wspace=0.22)
    show(fig, f"{title}, in {unit}. {' '.join(words)}")


def draw_slopes(pairs: Mapping[str, tuple[Any, Any]]) -> None:
    """Slopes by trial, and as a program has them: on the diagonal where they are the same."""
    fig, axes = plt.subplots(1, len(pairs), figsize=(9.6, 4.2), squeeze=False)
    words = []
    largest = 1.1 * max(np.abs(both).max() for both in pairs.values())
    for ax, (name, (by_trial, found)) in zip(axes[0], pairs.items(), strict=True):
        ax.plot([-largest, largest], [-largest, largest], color=GREY, lw=1)
        ax.plot(by_trial, found, ".", color=BLUE if np.allclose(by_trial, found, atol=1e-6) else RED)
        off = np.linalg.norm(found - by_trial) / np.linalg.norm(by_trial)
        ax.set(xlabel="slope by trial", ylabel="slope from the backward", xlim=(-largest, largest))
        ax.set(ylim=(-largest, largest), title=name)
        ax.title.set_fontsize(10)
        ax.locator_params(nbins=5)
        ax.spines[["top", "right"]].set_visible(False)
        words.append(f"{name}: {len(by_trial)} slopes, {100 * off:.0f}% off.")
    fig.subplots_adjust(left=0.09, right=0.99, top=0.92, bottom=0.12, wspace=0.25)
    show(fig, "The slopes of some parameters by trial, and from the backward (counted). " + " ".join(words))


def draw_losses(curves: Mapping[str, Sequence[float]], title: str) -> None:
    """Losses of training, of each step the mean with up to five neighbours on either side."""
    fig, ax = plt.subplots(figsize=(9.6, 2.9))
    words = []
    for (colour, dashes), (name, losses) in zip([(BLUE, "-"), (RED, "--")], curves.items(), strict=False):
        smooth = [np.mean(losses[i - min(i, 5) : i + min(i, 5) + 1]) for i in range(len(losses))]
        ax.plot(np.arange(1, len(losses) + 1), smooth, color=colour, ls=dashes, lw=1.8, label=name)
        words.append(f"{name}: from {losses[0]:.2f} to {smooth[-1]:.2f}.")
    ax.set(xlabel="step", ylabel="loss, mean of 11 steps", ylim=(0, None), xlim=(0, None))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9)
    ax.set_title(title, loc="left", fontsize=10)
    fig.subplots_adjust(left=0.07, right=0.98, top=0.9, bottom=0.17)
    show(fig, f"{title}. {' '.join(words)}")
