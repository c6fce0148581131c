"""The pictures of lesson 12. They draw what was counted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from minidist.classroom.notebook.drawing import ALL_SIDES, canvas, name_colors, show
from minidist.memory.colors import BLUE, DARK, GREEN, LIGHT, ORANGE, RANKS

Array = np.ndarray
OWNERS = {f"rank {rank}": color for rank, color in enumerate(RANKS)}
ARRAYS = (  # what a layer keeps, in this order; small: the norms' means and deviations
    *("input of norm 1", "small", "small", "input of qkv", "q | k | v", "softmax's output"),
    *("the same after dropout", "mask of this dropout", "input of the projection", "mask of dropout 1"),
    *("input of norm 2", "small", "small", "input of up", "input of gelu", "input of down", "mask of dropout 2"),
)


def draw_mlp(title: str) -> None:
    """x, A, GeLU, B and the sum, on two ranks."""
    fig, [[ax]] = canvas(9.6, 3.6, within=(0.01, 0.99, 0.92, 0.01))

    def matrix(left: float, middle: float, width: float, height: float, color: str, name: str, part: str) -> None:
        """A matrix; the part that a rank has is in the rank's color."""
        low = middle - height / 2
        ax.add_patch(plt.Rectangle((left, low), width, height, fc="white", ec=DARK, lw=0.8))
        place = {
            "all": (left, low, width, height),
            "left": (left, low, width / 2, height),
            "right": (left + width / 2, low, width / 2, height),
            "top": (left, middle, width, height / 2),
            "bottom": (left, low, width, height / 2),
        }[part]
        ax.add_patch(plt.Rectangle(place[:2], *place[2:], fc=color, ec=DARK, lw=0.8))
        x, y = place[0] + place[2] / 2, place[1] + place[3] / 2
        ax.text(x, y, name, ha="center", va="center", color=DARK, fontsize=10)

    for rank, (middle, columns, rows) in enumerate(((5.2, "left", "top"), (1.8, "right", "bottom"))):
        color, r = RANKS[rank], rank + 1
        ax.text(-0.2, middle, f"rank {rank}", ha="right", va="center", color=DARK, fontsize=10)
        matrix(0, middle, 1.1, 1.7, LIGHT, "x", "all")
        matrix(1.8, middle, 2.6, 1.1, color, f"$A_{r}$", columns)
        matrix(6.3, middle, 1.3, 1.7, color, f"$Y_{r}$", "all")
        matrix(8.3, middle, 1.1, 2.6, color, f"$B_{r}$", rows)
        matrix(10.8, middle, 1.1, 1.7, color, f"$Y_{r} B_{r}$", "all")
        for at, sign in ((1.45, "·"), (5.35, "GeLU\n→"), (7.95, "·"), (10.1, "=")):
            ax.text(at, middle, sign, ha="center", va="center", color=DARK, fontsize=10)
        ax.annotate("", (13.3, 3.5 + 0.5 * (middle > 3.5) - 0.25), (12.0, middle), arrowprops={"arrowstyle": "->"})
    ax.text(13.55, 3.5, "+", ha="center", va="center", fontsize=16, color=DARK)
    matrix(14.1, 3.5, 1.1, 1.7, LIGHT, "y", "all")
    ax.text(13.55, 4.9, "all-reduce", ha="center", color=DARK, fontsize=9)
    for at, name in ((0.55, "x: whole"), (3.1, "A: columns"), (6.95, "GeLU(x A)"), (8.85, "B: rows"),
                     (11.35, "a term of\nthe sum"), (14.65, "y: whole")):  # fmt: skip
        ax.text(at, 0.15, name, ha="center", va="top", color=DARK, fontsize=9)
    ax.set(xlim=(-1.5, 15.4), ylim=(-0.7, 6.7))
    ax.set_axis_off()
    ax.set_title(title, loc="left", fontsize=10)
    show(
        fig,
        f"{title}. From left to right: both ranks have all of x. Rank 0 multiplies it by the left half of A's columns,"
        " rank 1 by the right half. Each applies GeLU to its own result, and multiplies it by its half of B's rows, the"
        " upper or the lower one. Both results are as large as y; an all-reduce adds them, and both ranks have y.",
    )


def find_owners(shape: tuple[int, int], parts: Sequence[Array]) -> Array:
    """Which rank has which element of a matrix. parts: what each rank gets of np.arange(elements) in that shape."""
    owner = np.zeros(shape, int)
    for rank, elements in enumerate(parts):
        owner.reshape(-1)[np.asarray(elements).reshape(-1)] = rank
    return owner


def draw_owners(cut_both: Callable[..., Any], h: int, m: int, title: str) -> None:
    """The parts of A (h, m) and of B (m, h) that cut_both gives to each of four ranks."""
    numbered = np.arange(h * m).reshape(h, m), np.arange(m * h).reshape(m, h)
    of_a, of_b = zip(*(cut_both(*numbered, 4, rank) for rank in range(4)), strict=True)
    draw_cut({"A": find_owners((h, m), of_a), "B": find_owners((m, h), of_b)}, title)


def draw_sections(cuts: Mapping[str, Callable[..., Any]], title: str) -> None:
    """Which rank has which columns of [Q | K | V], for several ways to cut it; h is 8, and there are four ranks."""
    numbered = np.arange(24).reshape(1, 24)
    fig, axes = canvas(
        9.6, 0.75 * len(cuts) + 0.9, title, rows=len(cuts), hidden=ALL_SIDES, within=(0.12, 0.99, 0.8, 0.18), gap=0.5
    )
    words = []
    for ax, (name, cut) in zip(axes[:, 0], cuts.items(), strict=True):
        owner = find_owners((1, 24), [cut(numbered, 4, rank) for rank in range(4)])
        ax.pcolormesh(owner, cmap=ListedColormap(RANKS), vmin=0, vmax=3, edgecolors="white", linewidth=0.8)
        for section, letter in enumerate("QKV"):
            ax.text(8 * section + 4, 1.05, letter, ha="center", va="bottom", color=DARK, fontsize=10)
            ax.axvline(8 * section, color=DARK, lw=1.5)
        ax.set(xlim=(-0.05, 24.05), xticks=[], yticks=[0.5], yticklabels=[name])
        ax.tick_params(length=0)
        words.append(f"{name}: columns 0 to 23 belong to ranks {' '.join(map(str, owner[0]))}.")
    name_colors(fig, OWNERS, loc="lower center", ncol=4, fontsize=9)
    show(fig, f"{title}. {' '.join(words)} Q is columns 0 to 7, K 8 to 15, V 16 to 23.")


def draw_cut(owners: Mapping[str, Array], title: str) -> None:
    """Matrices, each element in the color of the rank that has it."""
    fig, axes = canvas(9.6, 3.4, title, columns=len(owners), within=(0.02, 0.98, 0.84, 0.1))
    longest = max(max(of.shape) for of in owners.values())  # all to the same scale
    words = []
    for ax, (name, of) in zip(axes[0], owners.items(), strict=True):
        ax.pcolormesh(of, cmap=ListedColormap(RANKS), vmin=0, vmax=3, edgecolors="white", linewidth=0.8)
        ax.set(xlim=(0, longest), ylim=(longest, 0), aspect="equal")
        ax.set_axis_off()
        ax.set_title(f"{name} {of.shape[0]} × {of.shape[1]}", fontsize=9.5, loc="left")
        ways = "columns" if np.all(of == of[0]) else "rows"
        words.append(f"{name} is cut by {ways}, {len(np.unique(of))} parts.")
    name_colors(fig, OWNERS, loc="lower center", ncol=4, fontsize=9)
    show(fig, f"{title}. {' '.join(words)} Every element belongs to one rank, and all ranks have the same number.")


def name_arrays(kept: Sequence[int], sbh: int) -> dict[str, float]:
    """The bytes / sbh that a rank keeps of each array of a layer, without the norms' means and deviations."""
    return {name: nbytes / sbh for name, nbytes in zip(ARRAYS, kept, strict=True) if name != "small"}


def draw_kept(layouts: Mapping[str, Mapping[str, float]], title: str) -> None:
    """The arrays that a rank keeps of a layer, in bytes / sbh: a bar for each layout."""
    names = list(next(iter(layouts.values())))
    fig, [[ax]] = canvas(9.6, 2.4 + 1.6 * len(layouts), within=(0.24, 0.98, 0.95, 0.08))
    places, words = np.arange(len(names))[::-1].astype(float), []
    for number, ((layout, of), color) in enumerate(zip(layouts.items(), (BLUE, ORANGE, GREEN), strict=False)):
        sizes, at = list(of.values()), places + 0.27 * (1 - number)
        ax.barh(at, sizes, height=0.25, color=color, label=f"{layout}: {sum(sizes):g} in total")
        for place, size in zip(at, sizes, strict=True):
            ax.text(size + 0.2, place, f"{size:g}", va="center", fontsize=7)
        words.append(f"{layout}: {', '.join(f'{name} {size:g}' for name, size in zip(names, sizes, strict=True))}.")
    ax.set(yticks=places, yticklabels=names, xlabel="bytes / sbh on each rank")
    ax.legend(frameon=False, fontsize=9, loc="center right")
    ax.set_title(title, loc="left", fontsize=10)
    show(fig, f"{title}, in bytes for each of the s·b·h numbers of a layer's input. {' '.join(words)}")


def draw_masks(rows: Mapping[str, Sequence[Array]], title: str) -> tuple[dict[str, int], dict[str, float]]:
    """Dropout masks of the heads, two on each of four ranks: black is dropped. Returns for each row the number of
    different masks, and the standard deviation of a sum of ones over the heads after dropout."""
    heads = max(map(len, rows.values()))
    fig, axes = canvas(
        9.6, 3.3, title, rows=len(rows), columns=heads, hidden=(), within=(0.05, 0.99, 0.84, 0.02), gap=(0.1, 0.25)
    )
    words, different, noise = [], {}, {}
    for of_row, (name, masks) in zip(axes, rows.items(), strict=True):
        different[name] = len({np.asarray(mask).tobytes() for mask in masks})
        noise[name] = float(np.std(np.sum(masks, axis=0) / 0.9))
        for head, (ax, mask) in enumerate(zip(of_row, masks, strict=True)):
            ax.imshow(mask, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.set_title(f"rank {head * 4 // heads}, head {head}", fontsize=7.5, color=DARK)
            ax.spines[:].set(color=RANKS[head * 4 // heads], linewidth=2.5)
        of_row[0].set_ylabel(name, fontsize=9)
        words.append(f"{name}: {different[name]} different masks for {len(masks)} heads.")
    show(fig, f"{title}. {' '.join(words)} Black places are dropped.")
    return different, noise


def show_sequence(layers: Mapping[tuple[int, bool], Any], s: int, b: int, h: int, a: int) -> None:
    """A table of the bytes that a rank keeps and sends for a layer, with sequence parallelism and without."""
    sbh = s * b * h
    print(f"{'':26}{'bytes kept':>20}{'bytes sent':>20}")
    print(f"{'t':>2}  {'':22}{'computed':>10}{'counted':>10}{'computed':>10}{'counted':>10}{'again':>9}")
    for n in (2, 4):
        for sequence, name in ((False, "tensor parallel"), (True, "and sequence parallel")):
            kept, phases = layers[n, sequence]
            computed = sbh * ((34 if sequence else 10 * n + 24) / n + 5 * a * s / h / n)
            small = 16 * s * b // (n if sequence else 1)  # the norms' means and deviations
            again = phases.get("layers: all-gather again", {"bytes": 0})["bytes"]
            sent = sum(counted["bytes"] for counted in phases.values()) - again
            print(f"{n:>2}  {name:22}{computed:>10,.0f}{sum(kept) - small:>10,}", end="")
            print(f"{2 * 8 * sbh * (n - 1) // n:>10,}{sent:>10,}{again:>9,}")


def show_step_bytes(yours: Mapping[str, int], lesson: Mapping[str, int]) -> None:
    """A table of the bytes that rank 0 sends in a step of transformer.py, on four ranks."""
    bsh = 4 * 8 * 16  # numbers in an all-reduce
    numbers_of = {"layer forward": 2 * bsh, "layer backward": 2 * bsh, "head backward": bsh, "loss": 3 * 4 * 8}
    print(f"{'rank 0, bytes in a step':26}{'computed':>10}{'with yours':>12}{'the lesson':>12}")
    for phase, numbers in numbers_of.items():
        print(f"{phase:26}{2 * 3 * numbers * 8 // 4:>10,}{yours[phase]:>12,}{lesson[phase]:>12,}")


def draw_losses(curves: Mapping[str, Sequence[float]], title: str, scale: str = "linear") -> None:
    """A line for each run."""
    fig, [[ax]] = canvas(9.6, 2.9, within=(0.07, 0.98, 0.9, 0.17))
    words = []
    for (color, dashes, width), (name, losses) in zip(
        [(BLUE, "-", 4), (ORANGE, "--", 2.4), (DARK, ":", 1.2)], curves.items(), strict=False
    ):  # thinner and thinner: lines may lie on one another
        ax.plot(np.arange(1, len(losses) + 1), losses, color=color, ls=dashes, lw=width, label=name)
        words.append(f"{name}: from {losses[0]:.2f} to {losses[-1]:.2f}.")
    ax.set(xlabel="step", ylabel="loss", yscale=scale, xlim=(0, None))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if scale == "log":
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(0)
    ax.legend(frameon=False, fontsize=9, loc="upper right" if scale == "log" else "lower left")
    ax.set_title(title, loc="left", fontsize=10)
    show(fig, f"{title}. {' '.join(words)}")
