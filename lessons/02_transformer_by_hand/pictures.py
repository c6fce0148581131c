"""The pictures of lesson 02. They draw what was counted, and what a tape has."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from minidist.classroom.lesson import show

BLUE, ORANGE, GREEN, RED, GREY = "#3b6ea8", "#d99a2b", "#5a9e6f", "#b5524a", "#9a9a9a"


def draw_tape(steps: Sequence[Any], shapes: Mapping[int, tuple[int, ...]], gradients: Sequence[int]) -> None:
    """A tape as a row of boxes, a box for each step: above them what it made, below them the way back.

    shapes: of each value, by its number. gradients: the numbers of the values whose gradients came out.
    """
    fig, ax = plt.subplots(figsize=(9.6, 2.9))
    ax.axis("off")
    ax.set(xlim=(-0.75, len(steps) - 0.1), ylim=(-1.25, 1.2))
    made = {step.output for step in steps}
    arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "lw": 1.3}
    words = []
    for place, step in enumerate(steps):
        name = step.backward.__name__.removesuffix("_backward")
        box = plt.Rectangle((place - 0.25, -0.28), 0.5, 0.56, facecolor="#eef2f7", edgecolor=BLUE, lw=1.2)
        ax.add_patch(box)
        kept = ", ".join(_shape(array.shape) for array in step.kept)
        ax.text(place, 0.08, name, ha="center", va="center", fontsize=11, fontweight="bold", color=BLUE)
        ax.text(place, -0.14, f"keeps {kept}" if kept else "keeps nothing", ha="center", va="center", fontsize=7.5)
        forward, back = {**arrow, "color": BLUE}, {**arrow, "color": RED}
        for number in step.inputs:
            if number in made or (place == 0 and number == step.inputs[0]):
                ax.annotate("", (place - 0.25, 0.14), (place - 0.75, 0.14), arrowprops=forward)
                ax.text(place - 0.5, 0.2, f"{number}: {_shape(shapes[number])}", ha="center", fontsize=8.5, color=BLUE)
                ax.annotate("", (place - 0.75, -0.14), (place - 0.25, -0.14), arrowprops=back)
                ax.text(place - 0.5, -0.3, f"d{number}", ha="center", fontsize=9, color=RED)
            else:
                ax.annotate("", (place, 0.28), (place, 0.78), arrowprops=forward)
                ax.text(place, 0.84, f"{number}: {_shape(shapes[number])}", ha="center", fontsize=8.5, color=BLUE)
                ax.annotate("", (place, -0.78), (place, -0.28), arrowprops=back)
                out = f"d{number}, comes out" if number in gradients else f"d{number}"
                ax.text(place, -0.96, out, ha="center", fontsize=9, color=RED)
        words.append(
            f"Step {place + 1}, {name}: from {_list(step.inputs)} to {step.output}, keeps {kept or 'nothing'}."
        )
    last = len(steps) - 1
    ax.annotate("", (last + 0.62, 0.14), (last + 0.25, 0.14), arrowprops={**arrow, "color": BLUE})
    ax.text(last + 0.66, 0.1, f"{steps[-1].output}: the loss", fontsize=8.5, color=BLUE)
    ax.annotate("", (last + 0.25, -0.14), (last + 0.62, -0.14), arrowprops={**arrow, "color": RED})
    ax.text(last + 0.66, -0.2, "1", fontsize=9, color=RED)
    ax.set_title(
        "The tape: forward in blue, from left to right; back in red, from right to left", loc="left", fontsize=10
    )
    fig.subplots_adjust(left=0.01, right=0.94, top=0.9, bottom=0.01)
    back = f"On the way back the gradients of the values {_list(gradients)} come out."
    show(fig, f"A tape of {len(steps)} steps. {' '.join(words)} {back}")


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) if shape else "one"


def _list(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, sorted(numbers)))


def draw_parameters(models: Mapping[str, Mapping[str, int]]) -> None:
    """Where each model's parameters are: a bar each, with a piece for each kind."""
    colours = [BLUE, ORANGE, GREEN, GREY]
    fig, axes = plt.subplots(len(models), 1, figsize=(9.6, 1.25 * len(models) + 0.5), squeeze=False)
    words = []
    for ax, (name, kinds) in zip(axes[:, 0], models.items(), strict=True):
        total, left = sum(kinds.values()), 0.0
        for colour, (kind, size) in zip(colours, kinds.items(), strict=True):
            per_cent = 100 * size / total
            ax.barh(0, per_cent, left=left, color=colour, height=0.55)
            if per_cent > 4:
                ax.text(
                    left + per_cent / 2,
                    0,
                    f"{kind}\n{per_cent:.1f}%",
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=9,
                )
            elif per_cent > 2:
                ax.text(left + per_cent / 2, 0, f"{per_cent:.1f}%", ha="center", va="center", color="white", fontsize=8)
            left += per_cent
        ax.axis("off")
        ax.set(xlim=(0, 100), ylim=(-0.4, 0.4))
        ax.set_title(f"{name}: {total:,} parameters", loc="left", fontsize=10)
        parts = ", ".join(f"{kind} {100 * size / total:.1f}%" for kind, size in kinds.items())
        words.append(f"{name}, {total:,} parameters: {parts}.")
    fig.subplots_adjust(left=0.01, right=0.99, top=0.88, bottom=0.02, hspace=0.5)
    show(fig, "Where the parameters are (counted). " + " ".join(words))


def draw_kept(kept: Sequence[tuple[str, int]], own: int) -> None:
    """What a block's tape keeps, operation by operation, in bytes; own: the bytes of the block's parameters."""
    fig, ax = plt.subplots(figsize=(9.6, 3.6))
    names = [name for name, _ in kept]
    sizes = np.array([size for _, size in kept]) / 1e6
    colours = [RED if name == "probabilities" else BLUE for name in names]
    places = np.arange(len(names))[::-1]
    ax.barh(places, sizes, color=colours, height=0.66)
    for place, size in zip(places, sizes, strict=True):
        ax.text(size + 0.6, place, f"{size:.1f}" if size else "nothing new", va="center", fontsize=8.5)
    ax.axvline(own / 1e6, color=GREY, ls="--", lw=1)
    ax.text(own / 1e6 + 0.6, -0.35, "the block's parameters", color="#666666", fontsize=9, va="center")
    ax.set(yticks=places, yticklabels=names, xlim=(0, 1.14 * sizes.max()), xlabel="MB (10⁶ bytes) of float32")
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title("What the tape keeps of one block of GPT-2, for one sequence of 1,024 tokens", loc="left", fontsize=10)
    fig.subplots_adjust(left=0.17, right=0.98, top=0.91, bottom=0.14)
    parts = ", ".join(f"{name} {size:.1f}" for name, size in zip(names, sizes, strict=True))
    show(
        fig, f"What the tape keeps of one block of GPT-2, in MB: {parts}. The parameters of the block: {own / 1e6:.1f}."
    )


def draw_losses(curves: Mapping[str, Sequence[float]], floor: float, title: str) -> None:
    """Losses of training, each step's a thin line and the mean of eleven a thick one, and the best that is possible."""
    fig, ax = plt.subplots(figsize=(9.6, 3.5))
    words = []
    styles = zip([BLUE, RED], ["-", "--"], curves.items(), strict=False)
    for colour, style, (name, losses) in styles:
        steps = np.arange(1, len(losses) + 1)
        smooth = [np.mean(losses[max(0, i - 5) : i + 6]) for i in range(len(losses))]
        ax.plot(steps, losses, color=colour, lw=0.7, alpha=0.35)
        ax.plot(steps, smooth, color=colour, lw=2, ls=style, label=name)
        words.append(f"{name}: from {losses[0]:.2f} to {np.mean(losses[-20:]):.2f}.")
    ax.axhline(floor, color="#444444", lw=1, ls=":")
    ax.text(len(losses), floor - 0.05, "the best that is possible", ha="right", va="top", fontsize=9, color="#444444")
    ax.set(xlabel="step", ylabel="loss", ylim=(0, None), xlim=(0, len(losses) + 1))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="lower left", fontsize=9)
    ax.set_title(title, loc="left", fontsize=10)
    fig.subplots_adjust(left=0.07, right=0.98, top=0.91, bottom=0.14)
    show(fig, f"{title}. {' '.join(words)} A dotted line at {floor:.2f}: the best that is possible.")


def draw_attention(maps: Mapping[str, Any]) -> None:
    """Whom each position looks at: for each name a map (T queries, T keys) of probabilities."""
    fig, axes = plt.subplots(1, len(maps), figsize=(4.4 * len(maps), 4.0), squeeze=False)
    words = []
    for ax, (name, prob) in zip(axes[0], maps.items(), strict=True):
        prob = np.asarray(prob)
        length = len(prob)
        ax.imshow(prob, cmap="Blues", vmin=0, vmax=1)
        ax.plot(np.arange(length + 1) - 0.5, np.arange(length + 1) - 0.5, color=RED, lw=0.8)
        ax.set(xlabel="key: the position that is looked at", title=name, xticks=range(length), yticks=range(length))
        ax.set_ylabel("query: the position that looks")
        ax.title.set_fontsize(10)
        future = float(np.triu(prob, 1).sum() / length)
        words.append(f"{name}: {100 * future:.0f}% of the looks go to a later position, right of the red diagonal.")
    fig.subplots_adjust(left=0.07, right=0.99, top=0.92, bottom=0.13, wspace=0.25)
    show(fig, "Whom each position looks at, the mean over sequences and heads. " + " ".join(words))
