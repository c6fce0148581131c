"""The pictures and tables of lesson 02: counts, and tapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch

from minidist.classroom.notebook.drawing import canvas, show
from minidist.memory.colors import BLUE, DARK, GREEN, GREY, LIGHT, ORANGE, QUANTITIES, RED

PARAMETERS, ACTIVATIONS, GRADIENTS = (QUANTITIES[name] for name in ("parameters", "activations", "gradients"))


def draw_tape(steps: Sequence[Any], shapes: Mapping[int, tuple[int, ...]], gradients: Sequence[int]) -> None:
    """A tape as a row of boxes, a box for each step: above them the values, below them the way back.

    shapes: of each value, by its number. gradients: the numbers of the values whose gradients come out.
    """
    fig, [[ax]] = canvas(9.6, 2.9, within=(0.01, 0.94, 0.9, 0.01))
    ax.axis("off")
    ax.set(xlim=(-0.75, len(steps) - 0.1), ylim=(-1.25, 1.2))
    made = {step.output for step in steps}
    arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "lw": 1.3}
    words = []
    for place, step in enumerate(steps):
        name = step.backward.__name__.removesuffix("_backward")
        box = plt.Rectangle((place - 0.25, -0.28), 0.5, 0.56, facecolor=LIGHT, edgecolor=GREY, lw=1.2)
        ax.add_patch(box)
        kept = ", ".join(_shape(array.shape) for array in step.kept)
        ax.text(place, 0.08, name, ha="center", va="center", fontsize=11, fontweight="bold", color=DARK)
        ax.text(place, -0.14, f"keeps {kept}" if kept else "keeps nothing", ha="center", va="center", fontsize=7.5)
        forward, back = {**arrow, "color": ACTIVATIONS}, {**arrow, "color": GRADIENTS}
        for number in step.inputs:
            if number in made or (place == 0 and number == step.inputs[0]):
                ax.annotate("", (place - 0.25, 0.14), (place - 0.75, 0.14), arrowprops=forward)
                ax.text(place - 0.5, 0.2, f"{number}: {_shape(shapes[number])}", ha="center", fontsize=8.5, color=DARK)
                ax.annotate("", (place - 0.75, -0.14), (place - 0.25, -0.14), arrowprops=back)
                ax.text(place - 0.5, -0.3, f"d{number}", ha="center", fontsize=9, color=DARK)
            else:
                ax.annotate("", (place, 0.28), (place, 0.78), arrowprops=forward)
                ax.text(place, 0.84, f"{number}: {_shape(shapes[number])}", ha="center", fontsize=8.5, color=DARK)
                ax.annotate("", (place, -0.78), (place, -0.28), arrowprops=back)
                out = f"d{number}, comes out" if number in gradients else f"d{number}"
                ax.text(place, -0.96, out, ha="center", fontsize=9, color=DARK)
        words.append(
            f"Step {place + 1}, {name}: from {_list(step.inputs)} to {step.output}, keeps {kept or 'nothing'}."
        )
    last = len(steps) - 1
    ax.annotate("", (last + 0.62, 0.14), (last + 0.25, 0.14), arrowprops={**arrow, "color": ACTIVATIONS})
    ax.text(last + 0.66, 0.1, f"{steps[-1].output}: the loss", fontsize=8.5, color=DARK)
    ax.annotate("", (last + 0.25, -0.14), (last + 0.62, -0.14), arrowprops={**arrow, "color": GRADIENTS})
    ax.text(last + 0.66, -0.2, "1", fontsize=9, color=DARK)
    ax.set_title(
        "The tape: forward in violet, from left to right; back in orange, from right to left", loc="left", fontsize=10
    )
    back = f"On the way back the gradients of the values {_list(gradients)} come out."
    show(fig, f"A tape of {len(steps)} steps. {' '.join(words)} {back}")


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) if shape else "one"


def _list(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, sorted(numbers)))


def draw_parameters(models: Mapping[str, Mapping[str, int]]) -> None:
    """Where each model's parameters are: a bar each, with a piece for each kind."""
    colors = [BLUE, ORANGE, GREEN, GREY]
    height = 1.35 * len(models) + 0.7
    fig, axes = canvas(
        9.6, height, rows=len(models), hidden=("top", "right", "left"), within=(0.02, 0.98, 0.88, 0.16), gap=0.75
    )
    words = []
    for ax, (name, kinds) in zip(axes[:, 0], models.items(), strict=True):
        total, left = sum(kinds.values()), 0.0
        for color, (kind, size) in zip(colors, kinds.items(), strict=True):
            per_cent = 100 * size / total
            ax.barh(0, per_cent, left=left, color=color, height=0.55)
            if per_cent > 4:
                ax.text(
                    left + per_cent / 2, 0, f"{kind}\n{per_cent:.1f}%", ha="center", va="center", color=DARK, fontsize=9
                )
            elif per_cent > 2:
                ax.text(left + per_cent / 2, 0, f"{per_cent:.1f}%", ha="center", va="center", color=DARK, fontsize=8)
            left += per_cent
        ax.set(xlim=(0, 100), ylim=(-0.4, 0.4), yticks=[])
        ax.set_title(f"{name}: {total:,} parameters", loc="left", fontsize=10)
        parts = ", ".join(f"{kind} {100 * size / total:.1f}%" for kind, size in kinds.items())
        words.append(f"{name}, {total:,} parameters: {parts}.")
    axes[-1, 0].set_xlabel("percent of the parameters")
    axes[0, 0].legend(
        handles=[Patch(color=color, label=kind) for color, kind in zip(colors, kinds, strict=True)],
        **{"frameon": False, "ncols": 4, "loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "fontsize": 9},
    )
    show(fig, "Where the parameters are (counted). " + " ".join(words))


def draw_kept(kept: Sequence[tuple[str, int]], own: int) -> None:
    """The bytes that a block's tape keeps, by operation; own: the bytes of the block's parameters."""
    fig, [[ax]] = canvas(9.6, 3.6, within=(0.17, 0.98, 0.91, 0.14))
    names = [name for name, _ in kept]
    sizes = np.array([size for _, size in kept]) / 1e6
    colors = [RED if name == "probabilities" else ACTIVATIONS for name in names]
    places = np.arange(len(names))[::-1]
    ax.barh(places, sizes, color=colors, height=0.66)
    for place, size in zip(places, sizes, strict=True):
        ax.text(size + 0.6, place, f"{size:.1f}" if size else "nothing new", va="center", fontsize=8.5)
    ax.axvline(own / 1e6, color=PARAMETERS, ls="--", lw=1.5)
    ax.text(own / 1e6 + 0.6, -0.35, "the block's parameters", color=DARK, fontsize=9, va="center")
    handles = [Patch(color=ACTIVATIONS, label="grows with the length"), Patch(color=RED, label="with its square")]
    ax.legend(handles=handles, frameon=False, loc="center right", fontsize=9)
    ax.set(yticks=places, yticklabels=names, xlim=(0, 1.14 * sizes.max()), xlabel="MB (10⁶ bytes) of float32")
    ax.set_title("Kept on the tape by one block of GPT-2, for one sequence of 1,024 tokens", loc="left", fontsize=10)
    parts = ", ".join(f"{name} {size:.1f}" for name, size in zip(names, sizes, strict=True))
    show(fig, f"Kept on the tape by one block of GPT-2, in MB: {parts}. The parameters of the block: {own / 1e6:.1f}.")


def draw_losses(curves: Mapping[str, Sequence[float]], floor: float, title: str) -> None:
    """Losses of training: thin lines for steps, thick ones for means of eleven steps; and the best possible loss."""
    fig, [[ax]] = canvas(9.6, 3.5, within=(0.07, 0.98, 0.91, 0.14))
    words = []
    styles = zip([BLUE, RED], ["-", "--"], curves.items(), strict=False)
    for color, style, (name, losses) in styles:
        steps = np.arange(1, len(losses) + 1)
        smooth = [np.mean(losses[max(0, i - 5) : i + 6]) for i in range(len(losses))]
        ax.plot(steps, losses, color=color, lw=0.7, alpha=0.35)
        ax.plot(steps, smooth, color=color, lw=2, ls=style, label=name)
        words.append(f"{name}: from {losses[0]:.2f} to {np.mean(losses[-20:]):.2f}.")
    ax.axhline(floor, color=DARK, lw=1, ls=":")
    ax.text(len(losses), floor - 0.05, "best possible loss", ha="right", va="top", fontsize=9, color=DARK)
    ax.set(xlabel="step", ylabel="loss", ylim=(0, None), xlim=(0, len(losses) + 1))
    ax.legend(frameon=False, loc="lower left", fontsize=9)
    ax.set_title(title, loc="left", fontsize=10)
    show(fig, f"{title}. {' '.join(words)} A dotted line at {floor:.2f}: the best possible loss.")


def draw_attention(maps: Mapping[str, Any]) -> None:
    """Where each position looks: for each name a map (T queries, T keys) of probabilities."""
    fig, axes = canvas(4.8 * len(maps), 4.0, columns=len(maps), hidden=(), within=(0.07, 0.9, 0.92, 0.13), gap=0.25)
    words = []
    for ax, (name, prob) in zip(axes[0], maps.items(), strict=True):
        prob = np.asarray(prob)
        length = len(prob)
        image = ax.imshow(prob, cmap="Purples", vmin=0, vmax=1)
        ax.plot(np.arange(length + 1) - 0.5, np.arange(length + 1) - 0.5, color=RED, lw=0.8)
        ax.set(xlabel="key: the position looked at", title=name, xticks=range(length), yticks=range(length))
        ax.set_ylabel("query: the position that looks")
        ax.title.set_fontsize(10)
        future = float(np.triu(prob, 1).sum() / length)
        words.append(
            f"{name}: {100 * future:.0f}% of the attention goes to a later position, right of the red diagonal."
        )
    bar = fig.add_axes((0.92, 0.2, 0.015, 0.65))
    fig.colorbar(image, cax=bar, label="probability")
    show(fig, "Where each position looks, averaged over sequences and heads. " + " ".join(words))


PARTS = [  # of a block: operation, shapes of its parameters, width of its output
    *(("norm 1", "C, C", "C"), ("qkv", "C×3C, 3C", "3C"), ("attention", "", "C"), ("projection", "C×C, C", "C")),
    *(("add", "", "C"), ("norm 2", "C, C", "C"), ("up", "C×4C, 4C", "4C"), ("gelu", "", "4C")),
    *(("down", "4C×C, C", "C"), ("add", "", "C")),
]


def draw_block() -> None:
    """A transformer block: its operations in order, their parameters, the widths between them, and two bypasses."""
    fig, [[ax]] = canvas(10.5, 2.8, within=(0.0, 1.0, 0.95, 0.0))
    ax.set(xlim=(-0.95, len(PARTS) + 0.25), ylim=(-1.0, 1.5))
    ax.axis("off")
    arrow = {"arrowstyle": "-|>", "color": ACTIVATIONS, "lw": 2, "shrinkA": 0, "shrinkB": 0}
    for place, (name, shape, out) in enumerate(PARTS):
        face = PARAMETERS if shape else LIGHT
        ax.add_patch(plt.Rectangle((place - 0.33, -0.3), 0.66, 0.6, facecolor=face, edgecolor=GREY, lw=0.8, zorder=2))
        ax.text(place, 0, name, ha="center", va="center", fontsize=8, color=DARK, zorder=3)
        ax.text(place, -0.42, shape.replace(", ", "\nand "), ha="center", va="top", fontsize=8, color=DARK)
        ax.annotate("", (place + 0.67, 0), (place + 0.33, 0), arrowprops=arrow)
        at = (4.58, -0.2) if place == 4 else (place + 0.5, 0.12)  # there the next residual connection goes up
        ax.text(*at, out, ha="center", fontsize=8, color=DARK)
    ax.annotate("", (-0.33, 0), (-0.85, 0), arrowprops=arrow)
    ax.text(-0.72, 0.12, "x: C", ha="center", fontsize=8, color=DARK)
    for begin, end, name in ((-0.5, 4, "attention"), (4.5, 9, "MLP")):
        ax.plot([begin, begin, end], [0, 0.85, 0.85], color=ACTIVATIONS, lw=2)
        ax.annotate("", (end, 0.3), (end, 0.85 + 0.015), arrowprops=arrow)
        ax.text(
            (begin + end) / 2, 0.93, f"past the {name}: the residual connection", ha="center", fontsize=9, color=DARK
        )
    handles = [Patch(color=PARAMETERS, label="has parameters (shapes below)"), Patch(color=LIGHT, label="has none")]
    handles.append(Patch(color=ACTIVATIONS, label="activations, (B, T, width): the width above"))
    ax.legend(handles=handles, frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0, 1.08), fontsize=9)
    said = ", ".join(f"{name}{f' with parameters {shape}' if shape else ''}, width {out}" for name, shape, out in PARTS)
    words = "The input of norm 1 also goes past the attention to the first add, and that of norm 2 to the second."
    show(fig, f"A transformer block, from left to right: {said}. {words}")


def print_slopes(tried: Sequence[tuple[str, str, tuple[int, int], float]], gradients: Mapping[str, np.ndarray]) -> None:
    """Slopes by trial next to those of the broken tape."""
    print(f"{'slope by':42}{'by trial':>10}{'broken tape':>13}")
    for words, name, place, by_trial in tried:
        print(f"{words:42}{by_trial:10.4f}{gradients[name][place]:13.4f}")


def print_largest(slopes: Mapping[str, Any], with_yours: Mapping[str, Any]) -> None:
    """The steepest tried slope of each parameter, with the functions of exercise.py and with the lesson's."""
    print(f"{'the slope by one number of':28}{'by trial':>12}{'with yours':>13}{'the lesson':>13}")
    for name, (by_trial, mine) in with_yours.items():
        place = np.abs(by_trial).argmax()
        print(f"{name:28}{by_trial[place]:12.4f}{mine[place]:13.4f}{slopes[name][1][place]:13.4f}")


def print_every(label: str, losses: Mapping[str, Sequence[float]], steps: Sequence[int], digits: int) -> None:
    """Some losses of each training, or at each position; steps: their indices."""
    width = digits + 4
    print(f"{label:14}" + "".join(f"{step:{width}}" for step in steps))
    for name, of_training in losses.items():
        print(f"{name:14}" + "".join(f"{of_training[step]:{width}.{digits}f}" for step in steps))


def print_parameters(counted: Mapping[str, Sequence[int]], computed: Mapping[str, Sequence[int]]) -> None:
    """The parameters of each unit: by formula, and as declared."""
    formulas = {"GPT-2": ("(V + s)h", "12h² + 13h", "2h"), "LLaMA-2-7B": ("Vh", "4h² + 3hf + 2h", "Vh + h")}
    for name, units in counted.items():
        names = "embedding", f"each of {len(units) - 2} blocks", "head"
        print(f"{name:24}{'formula':>16}{'computed':>16}{'counted':>16}")
        for what, formula, place in zip(names, formulas[name], (0, 1, -1), strict=True):
            print(f"  {what:22}{formula:>16}{computed[name][place]:>16,}{units[place]:>16,}")
        print(f"  {'in all':38}{sum(computed[name]):>16,}{sum(units):>16,}\n")
    for name, width in (("GPT-2", 768), ("LLaMA-2-7B", 4096)):
        total, rule = sum(counted[name]), 12 * (len(counted[name]) - 2) * width**2
        print(f"12Lh² of {name}: {rule:,} (computed), {100 * rule / total:.1f}% of all")
