"""The pictures and tables of lesson 16. They draw what was counted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import given
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgb

from minidist.classroom.notebook.drawing import canvas, name_colors, show
from minidist.memory.colors import BLUE, DARK, GREY, LIGHT, ORANGE, RANKS, RED

Array = np.ndarray
HIDDEN, LATER = "#ffffff", "#eeeeee"  # pairs that no rank computes, and pairs of a later step


# ---- tiles -----------------------------------------------------------------------------------------------------------


def draw_moved(counted: Mapping[int, int], formula: Callable[..., int], whole: int, n: int, d: int) -> None:
    """The numbers that attention in tiles moves, over the room in the fast memory; and without tiles."""
    computed = {room: formula(n, d, room) for room in (2**k for k in range(12, 19))}
    title = f"Numbers moved for n = {n:,}, d = {d} (dots: counted; line: computed)"
    fig, [[ax]] = canvas(8.6, 3.6, within=(0.1, 0.98, 0.91, 0.15))
    ax.axhline(whole, color=RED, lw=1.6)
    ax.text(max(computed), whole * 1.12, f"without tiles: {whole:,}", color=DARK, fontsize=9, ha="right")
    ax.plot(list(computed), list(computed.values()), color=BLUE, lw=1.6, zorder=1)
    ax.scatter(list(counted), list(counted.values()), color=BLUE, s=36, zorder=2)
    for room, moved in counted.items():
        ax.annotate(
            f"{whole / moved:.2g}×", (room, moved), (0, -15), textcoords="offset points", ha="center", fontsize=8
        )
    ax.set(xscale="log", yscale="log", xlabel="numbers that the fast memory has room for", ylabel="numbers moved")
    ax.set_xticks(list(counted), [f"{room:,}" for room in counted], fontsize=8)
    ax.set_ylim(min(counted.values()) / 2, max(whole, *counted.values()) * 1.8)
    ax.minorticks_off()
    ax.grid(axis="y", color=LIGHT, lw=0.8)
    ax.set_title(title, loc="left", fontsize=10)
    points = ", ".join(f"{moved:,} with room for {room:,}" for room, moved in counted.items())
    show(fig, f"{title}. Without tiles {whole:,} numbers are moved; with tiles {points}. The dots lie on the formula.")


# ---- around the ring -------------------------------------------------------------------------------------------------


def show_step(step: int, held: Sequence[Sequence[int]], at: Sequence[Array]) -> None:
    """The ring in one step: whose block each rank holds, what is on its way, and which pairs are computed.

    held[rank][step] is the rank whose keys and values this rank has; at[rank] are its positions.
    """
    n, last = len(held), len(held[0]) - 1
    if not 0 <= step <= last:
        print(f"There are steps 0 to {last}.")
        return
    fig, (ring, pairs) = plt.subplots(1, 2, figsize=(9.6, 4.1), width_ratios=(1, 1.05))
    ring.set(xlim=(-1.95, 1.95), ylim=(-1.65, 1.65), aspect="equal")
    ring.set_axis_off()
    for rank in range(n):
        x, y = _on_the_circle(rank, n)
        ring.add_patch(plt.Circle((x, y), 0.27, color=RANKS[rank], zorder=3))
        ring.text(x, y, f"Q{rank}", color=DARK, ha="center", va="center", fontweight="bold", zorder=4)
        _draw_block(ring, (1.58 * x, 1.45 * y), held[rank][step])
        if step < last:
            start, end, middle = (_on_the_circle(rank + part, n) for part in (0.22, 0.78, 0.5))
            style = {
                "arrowstyle": "-|>",
                "connectionstyle": "arc3,rad=-0.22",
                "color": GREY,
                "shrinkA": 0,
                "shrinkB": 0,
            }
            ring.annotate("", end, start, arrowprops=style)
            _draw_block(ring, (0.72 * middle[0], 0.72 * middle[1]), held[rank][step], small=True)
    ring.set_title(f"step {step}: each rank's queries, and the block that it holds", fontsize=9.5, loc="left")
    counts = _draw_pairs(pairs, step, held, at)
    pairs.set_title("pairs of this step in color, of earlier steps pale", fontsize=9.5, loc="left")
    fig.subplots_adjust(left=0.01, right=0.99, top=0.9, bottom=0.08, wspace=0.12)
    words = [
        f"rank {rank} holds the keys and values of rank {held[rank][step]} and computes {counts[rank]} pairs"
        for rank in range(n)
    ]
    on = "No block is sent any more." if step == last else "Each block is on its way to the next rank."
    show(fig, f"Step {step} of the ring. {'; '.join(words)}. {on}")


def draw_steps(held: Sequence[Sequence[int]], at: Sequence[Array], title: str) -> None:
    """All steps in a row of small frames: rows are queries, columns are keys, the color says whose keys."""
    steps = len(held[0])
    fig, [axes] = canvas(9.6, 2.9, title, columns=steps, hidden=(), within=(0.07, 0.99, 0.82, 0.07), gap=0.08)
    words = []
    for step, ax in enumerate(axes):
        counts = _draw_pairs(ax, step, held, at, names=step == 0)
        ax.set_title(f"step {step}", fontsize=9)
        words.append(f"Step {step}: ranks compute {', '.join(map(str, counts))} pairs.")
    show(fig, f"{title}. Queries are rows and keys columns, ordered by rank. {' '.join(words)}")


def _on_the_circle(place: float, n: int) -> tuple[float, float]:
    """Rank 0 on top, the others clockwise."""
    return float(np.sin(2 * np.pi / n * place)), float(np.cos(2 * np.pi / n * place))


def _draw_block(ax: Any, center: tuple[float, float], owner: int, small: bool = False) -> None:
    width, height = (0.34, 0.2) if small else (0.5, 0.28)
    place = center[0] - width / 2, center[1] - height / 2
    ax.add_patch(plt.Rectangle(place, width, height, fc=RANKS[owner], ec=DARK, lw=0.6, zorder=5))
    size = 6.5 if small else 8.5
    ax.text(*center, f"K{owner} V{owner}", ha="center", va="center", fontsize=size, color=DARK, zorder=6)


def _draw_pairs(
    ax: Any, step: int, held: Sequence[Sequence[int]], at: Sequence[Array], names: bool = True
) -> list[int]:
    """Queries by keys, both ordered by rank. Returns the pairs that each rank computes in the step."""
    order = np.concatenate(at)
    owner = np.concatenate([np.full(len(own), rank) for rank, own in enumerate(at)])
    when = np.array([[of.index(key) for key in range(len(held))] for of in held])[owner[:, None], owner]
    seen = order <= order[:, None]
    colors = np.array([to_rgb(color) for color in RANKS])[owner]
    image = np.empty((*seen.shape, 3))
    image[...] = to_rgb(LATER)
    image[when < step] = (0.35 * colors + 0.65)[np.nonzero(when < step)[1]]
    image[when == step] = colors[np.nonzero(when == step)[1]]
    image[~seen] = to_rgb(HIDDEN)
    ax.imshow(image, interpolation="nearest", extent=(0, len(order), len(order), 0))
    edges = np.cumsum([0, *map(len, at)])
    for edge in edges:
        ax.axhline(edge, color=GREY, lw=0.8)
        ax.axvline(edge, color=GREY, lw=0.8)
    middles = (edges[1:] + edges[:-1]) / 2
    ax.set_yticks(middles, [f"Q{rank}" for rank in range(len(at))] if names else [], fontsize=8)
    ax.set_xticks(middles, [f"K{rank}" for rank in range(len(at))], fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return [int((seen & (when == step))[owner == rank].sum()) for rank in range(len(at))]


# ---- balance ---------------------------------------------------------------------------------------------------------


def draw_balance(cuts: Mapping[str, Callable[..., Array]], c: int, title: str) -> None:
    """When each of four ranks with c positions works, if every step takes as long as its slowest rank."""
    at = {name: [cut(4 * c, 4, rank) for rank in range(4)] for name, cut in cuts.items()}
    layouts, busy = ({name: count(of) for name, of in at.items()} for count in (given.count_pairs, given.find_busy))
    end = max(sum(map(max, zip(*of, strict=True))) for of in layouts.values())
    fig, axes = canvas(
        9.6, 1.35 * len(layouts) + 0.9, title, rows=len(layouts), sharex=True, within=(0.08, 0.99, 0.87, 0.11), gap=0.5
    )
    words = []
    for ax, (name, pairs) in zip(axes[:, 0], layouts.items(), strict=True):
        n, begin = len(pairs), 0
        for step, of_step in enumerate(zip(*pairs, strict=True)):
            for rank, count in enumerate(of_step):
                owner = (rank - step) % n
                ax.broken_barh([(begin, max(of_step))], (rank - 0.4, 0.8), color=LIGHT, edgecolor="white")
                ax.broken_barh([(begin, count)], (rank - 0.4, 0.8), color=RANKS[owner], edgecolor="white")
                if count > end / 60:
                    ax.text(begin + count / 2, rank, f"K{owner}", ha="center", va="center", fontsize=7, color=DARK)
            begin += max(of_step)
        ax.set_title(f"{name}: ranks work {busy[name]:.1f}% of the time", fontsize=9, loc="left")
        ax.set_yticks(range(n), [f"rank {rank}" for rank in range(n)], fontsize=8)
        ax.set(xlim=(0, end), ylim=(n - 0.5, -0.5))
        words.append(f"{name}: ends at {begin}, ranks work {busy[name]:.1f}% of the time.")
    axes[-1, 0].set_xlabel("time, in pairs; gray: the rank waits", fontsize=9)
    show(fig, f"{title}. {' '.join(words)}")


# ---- masks -----------------------------------------------------------------------------------------------------------


def print_turned(turned: Sequence[Any], sequence: Array) -> dict[tuple[str, int], float]:
    """For each way to turn and number of ranks: the percentage of positions whose result is wrong."""
    found = given.compare_turned(turned, sequence)
    for (how, n), wrong in found.items():
        print(f"by {how:12} N = {n}: {wrong:5.1f}% of the positions are wrong")
    return found


def print_leaks(
    masked: Sequence[Any], at_of: Mapping[str, Sequence[Array]], right: Array
) -> dict[Any, tuple[int, int]]:
    """For each mask and cut: how many results are wrong, and how many another last token changes.

    masked[rank][mask, cut, "as it was" or "changed"]: this rank's results. right: those of one process.
    """
    found = {}
    for name, at in at_of.items():
        for mask in ("by_position", "by_rank"):
            before, after = (
                given.join([of[mask, name, last] for of in masked], at) for last in ("as it was", "changed")
            )
            wrong, changed = found[name, mask] = given.count_wrong(before, right), given.count_wrong(before, after)
            print(f"{name:11} {mask:12} {wrong:2} of {len(right)} results are wrong;", end="")
            print(f" another last token changes {changed:2} of them")
    return found


def draw_masks(masks: Mapping[str, Array], title: str) -> None:
    """What queries see, all in the order of the sequence: of the keys that are not later, and of those that are."""
    fig, [axes] = canvas(9.6, 3.7, title, columns=len(masks), hidden=(), within=(0.04, 0.99, 0.74, 0.14), gap=0.1)
    words = []
    for ax, (name, seen) in zip(axes, masks.items(), strict=True):
        earlier = np.tril(np.ones(seen.shape, bool))
        image = np.empty((*seen.shape, 3))
        image[...] = to_rgb(HIDDEN)
        for where, color in ((seen & earlier, BLUE), (seen & ~earlier, RED), (~seen & earlier, ORANGE)):
            image[where] = to_rgb(color)
        ax.imshow(image, interpolation="nearest")
        ax.set(xticks=[], yticks=[], xlabel="keys", ylabel="queries" if ax is axes[0] else "")
        ax.spines[:].set_color(GREY)
        future, missing = int((seen & ~earlier).sum()), int((~seen & earlier).sum())
        ax.set_title(f"{name}\n{future} later keys are seen,\n{missing} earlier ones are not", fontsize=8.5)
        words.append(f"{name}: {future} pairs with a later key are computed, {missing} with an earlier one are not.")
    meaning = {"seen, as it should be": BLUE, "a later key, seen": RED, "an earlier key, not seen": ORANGE}
    name_colors(fig, meaning, loc="lower center", ncol=3, fontsize=9)
    show(fig, f"{title}. {' '.join(words)}")


# ---- schemes ---------------------------------------------------------------------------------------------------------


def draw_sent(counts: Mapping[tuple[int, int], Mapping[str, Any]], s: int, heads: int, depth: int) -> None:
    """What a rank sends forward, in units of s·h, over N. counts[kv_heads, N][scheme]: bytes of float32, forward and
    backward. Lines: the formulas."""
    title = "What a rank sends for attention, forward (dots: counted; lines: computed)"
    counted = {
        (kv_heads / heads, n, scheme): forward / 4 / (s * heads * depth)
        for (kv_heads, n), of in counts.items()
        for scheme, (forward, _) in of.items()
    }
    fig, [axes] = canvas(9.6, 3.5, title, columns=2, within=(0.07, 0.99, 0.84, 0.14), gap=0.14)
    words = []
    for ax, g in zip(axes, sorted({g for g, *_ in counted}, reverse=True), strict=True):
        every = np.arange(2, 33)
        lines = {"ring": 2 * g * (every - 1) / every, "ulysses": (2 + 2 * g) * (every - 1) / every**2}
        for (scheme, line), color in zip(lines.items(), (BLUE, ORANGE), strict=True):
            name = "ring, all-gather" if scheme == "ring" else "Ulysses"
            ax.plot(every, line, color=color, lw=1.6, label=name)
            dots = {n: sent for (of, n, which), sent in counted.items() if of == g and which == scheme}
            ax.scatter(list(dots), list(dots.values()), color=color, s=32, zorder=3)
        cross = (1 + g) / g
        ax.axvline(cross, color=GREY, lw=0.8, ls=":")
        ax.text(cross + 0.4, ax.get_ylim()[1] * 0.9, f"N = {cross:g}", fontsize=8, color=DARK)
        ax.set(xlabel="ranks N", xlim=(1, 33), ylim=(0, None))
        kind = "a key for each query head" if g == 1 else f"a key for {1 / g:.0f} query heads"
        ax.set_title(f"g = {g:g}: {kind}", fontsize=9.5, loc="left")
        ax.grid(axis="y", color=LIGHT, lw=0.8)
        ax.legend(frameon=False, fontsize=9, loc="center right")
        words.append(f"With g = {g:g} Ulysses sends less than the ring if N is more than {cross:g}.")
    axes[0].set_ylabel("sent forward, in units of $s h$")
    show(fig, f"{title}. {' '.join(words)} The dots that were counted lie on the lines.")


def print_schemes(s: int, heads: int, kv_heads: int, depth: int, ranks: Sequence[int], sent: Any) -> None:
    """A table: what each scheme sends for a layer, and needs; `sent` is the exercise's function. 2 bytes a number."""
    print(f"{'MB for a layer':16}{'ring, all-gather':>24}{'Ulysses':>24}")
    print(f"{'N':>2}{'':14}{'forward':>12}{'backward':>12}{'forward':>12}{'backward':>12}   Ulysses is possible")
    for n in ranks:
        cells = [
            2e-6 * number for scheme in ("ring", "ulysses") for number in sent(scheme, s, heads, kv_heads, depth, n)
        ]
        possible = "yes" if kv_heads % n == 0 else f"no: {kv_heads} key/value head{'s' * (kv_heads > 1)}"
        print(f"{n:>2}{'':14}" + "".join(f"{cell:>12,.1f}" for cell in cells) + f"   {possible}")
    print(f"all keys and values, which all-gather holds at a time: {4e-6 * kv_heads * depth * s:,.1f} MB")
