"""The pictures of lesson 12. They draw what was counted."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from minidist.classroom.lesson import show

Array = np.ndarray
RANKS = ["#3b6ea8", "#d99a2b", "#5a9e6f", "#b5524a"]  # a colour for each
BLUE, ORANGE, GREEN, _ = RANKS


def draw_cut(owners: Mapping[str, Array], title: str) -> None:
    """Matrices, each element in the colour of the rank that has it."""
    fig, axes = plt.subplots(1, len(owners), figsize=(9.6, 3.4), squeeze=False)
    longest = max(max(of.shape) for of in owners.values())  # all to the same scale
    words = []
    for ax, (name, of) in zip(axes[0], owners.items(), strict=True):
        ax.pcolormesh(of, cmap=ListedColormap(RANKS), vmin=0, vmax=3, edgecolors="white", linewidth=0.8)
        ax.set(xlim=(0, longest), ylim=(longest, 0), aspect="equal")
        ax.set_axis_off()
        ax.set_title(f"{name} {of.shape[0]} × {of.shape[1]}", fontsize=9.5, loc="left")
        ways = "columns" if np.all(of == of[0]) else "rows"
        words.append(f"{name} is cut by {ways}, {len(np.unique(of))} parts.")
    patches = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in RANKS]
    fig.legend(patches, [f"rank {rank}" for rank in range(4)], loc="lower center", ncol=4, frameon=False, fontsize=9)
    fig.suptitle(title, x=0.01, ha="left", fontsize=10)
    fig.subplots_adjust(left=0.02, right=0.98, top=0.84, bottom=0.1)
    show(fig, f"{title}. {' '.join(words)} Every element belongs to one rank, and all ranks have equally many.")


def draw_kept(names: Sequence[str], layouts: Mapping[str, Sequence[float]], title: str) -> None:
    """The arrays that a rank keeps of a layer, in bytes / sbh: a bar for each layout."""
    fig, ax = plt.subplots(figsize=(9.6, 2.4 + 1.6 * len(layouts)))
    places, words = np.arange(len(names))[::-1].astype(float), []
    for number, ((layout, sizes), colour) in enumerate(zip(layouts.items(), (BLUE, ORANGE, GREEN), strict=False)):
        at = places + 0.27 * (1 - number)
        ax.barh(at, sizes, height=0.25, color=colour, label=f"{layout}: {sum(sizes):g} in all")
        for place, size in zip(at, sizes, strict=True):
            ax.text(size + 0.2, place, f"{size:g}", va="center", fontsize=7)
        words.append(f"{layout}: {', '.join(f'{name} {size:g}' for name, size in zip(names, sizes, strict=True))}.")
    ax.set(yticks=places, yticklabels=names, xlabel="bytes / sbh on each rank")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9, loc="center right")
    ax.set_title(title, loc="left", fontsize=10)
    fig.subplots_adjust(left=0.24, right=0.98, top=0.95, bottom=0.08)
    show(fig, f"{title}, in bytes for each of the s·b·h numbers of a layer's input. {' '.join(words)}")


def draw_masks(rows: Mapping[str, Sequence[Array]], title: str) -> None:
    """Dropout masks of the heads, two on each of four ranks: black is dropped."""
    heads = max(map(len, rows.values()))
    fig, axes = plt.subplots(len(rows), heads, figsize=(9.6, 3.3), squeeze=False)
    words = []
    for of_row, (name, masks) in zip(axes, rows.items(), strict=True):
        for head, (ax, mask) in enumerate(zip(of_row, masks, strict=True)):
            ax.imshow(mask, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.set_title(f"rank {head * 4 // heads}, head {head}", fontsize=7.5, color=RANKS[head * 4 // heads])
        of_row[0].set_ylabel(name, fontsize=9)
        words.append(f"{name}: {different(masks)} different masks for {len(masks)} heads.")
    fig.suptitle(title, x=0.01, ha="left", fontsize=10)
    fig.subplots_adjust(left=0.05, right=0.99, top=0.84, bottom=0.02, wspace=0.1, hspace=0.25)
    show(fig, f"{title}. {' '.join(words)} Where it is black, the number is dropped.")


def different(masks: Sequence[Any]) -> int:
    return len({np.asarray(mask).tobytes() for mask in masks})


def draw_losses(curves: Mapping[str, Sequence[float]], title: str, scale: str = "linear") -> None:
    """A line for each run."""
    fig, ax = plt.subplots(figsize=(9.6, 2.9))
    words = []
    for (colour, dashes, width), (name, losses) in zip(
        [(BLUE, "-", 4), (ORANGE, "--", 2.4), ("black", ":", 1.2)], curves.items(), strict=False
    ):  # thinner and thinner: lines may lie on one another
        ax.plot(np.arange(1, len(losses) + 1), losses, color=colour, ls=dashes, lw=width, label=name)
        words.append(f"{name}: from {losses[0]:.2f} to {losses[-1]:.2f}.")
    ax.set(xlabel="step", ylabel="loss", yscale=scale, xlim=(0, None))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if scale == "log":
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9, loc="upper right" if scale == "log" else "lower left")
    ax.set_title(title, loc="left", fontsize=10)
    fig.subplots_adjust(left=0.07, right=0.98, top=0.9, bottom=0.17)
    show(fig, f"{title}. {' '.join(words)}")
