"""What a rank holds in the course of a step, by kind: recorded from its pools, and drawn.

The horizontal axis has the boundaries of the step, equally spaced: units, or the instructions of a schedule. So ranks
of a pipeline can be compared, whatever their processes' timing.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import Any

from minidist import UsageError, how_to_install
from minidist.memory.arena import Arena
from minidist.memory.colors import BLUE, QUANTITIES
from minidist.memory.pool import KINDS, Pool

FORMATS = ("pdf", "png", "svg")
MOST_PANELS = 8
MOST_NAMES = 60  # across a panel; with more, names would overlap


@dataclass
class PoolHistory:
    """The successive states of a pool, and the boundaries between them."""

    states: list[tuple[int, ...]] = field(default_factory=list)  # bytes of each of KINDS
    boundaries: list[tuple[int, str, str]] = field(default_factory=list)  # (states before it, what ended, its name)

    def intervals(self) -> list[tuple[int, int, str]]:
        """(first state, last state + 1, name of what ends) for each interval from boundary to boundary. For a
        pipeline, the ends of units are not drawn: its instructions are the boundaries."""
        staged = any(what == "instruction" for _, what, _ in self.boundaries)
        drawn = [(end, name) for end, what, name in self.boundaries if what == "instruction" or not staged]
        starts = [0, *(end for end, _ in drawn)]
        return [(start, end, name) for start, (end, name) in zip(starts, drawn, strict=False)]

    def curve(self) -> tuple[list[float], list[tuple[int, ...]]]:
        """(places, states): where each state begins, with every interval 1 wide, and the states."""
        places, states = [], []
        for i, (start, end, _) in enumerate(self.intervals()):
            places += [i + j / (end - start) for j in range(end - start)]
            states += self.states[start:end]
        return places, states


@dataclass
class Recorder:
    """Watches a rank's pools, and records what each of them holds whenever one changes, so that their curves share a
    horizontal axis."""

    pools: Sequence[Pool]
    histories: dict[str, PoolHistory]  # by the pool's name

    def changed(self, pool: Pool) -> None:
        for each in self.pools:
            held = each.held
            self.histories[each.name].states.append(tuple(held[kind] for kind in KINDS))

    def note_boundary(self, pool: Pool, what: str, name: str) -> None:
        self.changed(pool)  # notes what was freed since the last array came
        for history in self.histories.values():
            history.boundaries.append((len(history.states), what, name))


@contextmanager
def recorded(pools: Sequence[Pool]) -> Iterator[dict[str, PoolHistory]]:
    """Record a rank's pools inside the block. Yields a history for each, by name."""
    recorder = Recorder(pools, {pool.name: PoolHistory() for pool in pools})
    recorder.changed(pools[0])
    for pool in pools:
        pool.watchers.append(recorder)
    try:
        yield recorder.histories
    finally:
        for pool in pools:
            pool.watchers.remove(recorder)


def check(option: str, path: str) -> None:
    """Raise UsageError unless a picture can be drawn into this file."""
    if find_spec("matplotlib") is None:
        raise UsageError(f"{option} needs matplotlib: {how_to_install('lessons')}")
    if format_of(path) not in FORMATS:
        raise UsageError(f"{option} {path}: give it a name that ends in .pdf, .png or .svg")


def format_of(path: str) -> str:
    """The format, by the file's name."""
    return Path(path).suffix.removeprefix(".").lower()


def draw(histories: Sequence[Mapping[str, PoolHistory]], title: str, format: str) -> bytes:
    """A picture with a panel for each rank and pool. Ranks with the same history share a panel; pools that stay empty
    on all ranks have none. histories: by pool, in order of rank. The format is one of FORMATS."""
    plt = pyplot()
    from matplotlib.ticker import EngFormatter

    used = [pool for pool in histories[0] if any(any(state) for each in histories for state in each[pool].states)]
    groups: list[tuple[PoolHistory, str, list[int]]] = []
    for pool, (rank, each) in itertools.product(used, enumerate(histories)):
        same = [ranks for other, name, ranks in groups if (other, name) == (each[pool], pool)]
        same[0].append(rank) if same else groups.append((each[pool], pool, [rank]))
    shown = groups[:MOST_PANELS]
    width = min(20.0, max(7.5, 3 + 0.26 * max(len(history.intervals()) for history, *_ in shown)))
    figure, panels = plt.subplots(
        len(shown), figsize=(width, 1.4 + 2.1 * len(shown)), sharey=True, squeeze=False, layout="constrained"
    )
    everything = [state for history, *_ in shown for state in history.states]
    kinds = [kind for kind, *held in zip(KINDS, *everything, strict=True) if any(held)]
    for axes, (history, pool, ranks) in zip(panels[:, 0], shown, strict=True):
        places, states = history.curve()
        intervals = history.intervals()
        places, states = [*places, len(intervals)], [*states, states[-1]]
        rows = [[state[KINDS.index(kind)] for state in states] for kind in kinds]
        axes.stackplot(
            places, rows, colors=[QUANTITIES[kind] for kind in kinds], labels=kinds, step="post", linewidth=0
        )
        needed = [sum(state) - state[KINDS.index("workspace")] for state in states]
        axes.axhline(max(needed), color="black", linewidth=0.8, linestyle=":")
        peak = EngFormatter("B", places=2)(max(needed))
        axes.annotate(
            f"peak without workspace: {peak}", (len(intervals), max(needed)), (-3, 2), textcoords="offset points",
            ha="right", va="bottom", fontsize=8,
        )  # fmt: skip
        for i in range(1, len(intervals)):
            axes.axvline(i, color="white", linewidth=0.5, alpha=0.7)
        if len(intervals) <= MOST_NAMES:
            names = [name for _, _, name in intervals]
            steep = 90 if max(map(len, names)) > 4 else 0
            axes.set_xticks([i + 0.5 for i in range(len(names))], names, rotation=steep, fontsize=7)
            axes.tick_params(axis="x", length=0)
        axes.set_title(_ranks(ranks) + f", {pool}" * (len(used) > 1), loc="left", fontsize=9)
        axes.set_xlim(0, len(intervals))
        axes.yaxis.set_major_formatter(EngFormatter("B"))
        axes.spines[["top", "right"]].set_visible(False)
    more = f"; {len(groups) - len(shown)} more that differ are not drawn" if len(groups) > len(shown) else ""
    figure.suptitle(title + more, fontsize=10)
    handles, labels = panels[0, 0].get_legend_handles_labels()  # the same in each
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False, fontsize=8)
    return saved(figure, format)


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == ranks[-1] - ranks[0] + 1:
        return f"each of ranks {ranks[0]} to {ranks[-1]}"
    return f"each of ranks {', '.join(map(str, ranks))}"


def draw_arena(arena: Arena, failed: str, format: str) -> bytes:
    """Draw where each array of a step lay in an arena, and when: for the last complete step, or, if the run has
    `failed` (the reason), for the step under way. The horizontal axis has the arrays, equally spaced, in order of
    arrival. The format is one of FORMATS."""
    plt = pyplot()
    from matplotlib.patches import Patch
    from matplotlib.ticker import EngFormatter

    course = arena.course if failed or not arena.before.blocks else arena.before
    figure, axes = plt.subplots(figsize=(11, 5), layout="constrained")
    end = course.ended + max(1, (course.ended - course.begun) // 20)  # room for the last arrays, which are still there
    for block in course.blocks:
        left, right = max(block.born, course.begun), end if block.gone is None else min(block.gone, end)
        axes.broken_barh(
            [(left, max(right - left, 0.5))], (block.start, block.nbytes), color=QUANTITIES[block.kind],
            edgecolor="white", linewidth=0.3,
        )  # fmt: skip
    for clock, _ in course.boundaries:
        axes.axvline(clock, color="black", linewidth=0.3, alpha=0.4)
    starts = [course.begun, *(clock for clock, _ in course.boundaries)]
    named = [(start, end, name) for start, (end, name) in zip(starts, course.boundaries, strict=False)]
    named = [each for each in named if MOST_NAMES * (each[1] - each[0]) > course.ended - course.begun]  # the wide ones
    places = [(start + end) / 2 for start, end, _ in named]
    axes.set_xticks(places, [name for _, _, name in named], rotation=90, fontsize=7)
    axes.tick_params(axis="x", length=0)
    highest = arena.capacity or arena.top
    axes.axhline(highest, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlim(course.begun, end)
    axes.set_ylim(0, 1.04 * highest)
    axes.yaxis.set_major_formatter(EngFormatter("B"))
    axes.spines[["top", "right"]].set_visible(False)
    kinds = [kind for kind in KINDS if any(block.kind == kind for block in course.blocks)]
    handles = [Patch(color=QUANTITIES[kind], label=kind) for kind in reversed(kinds)]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8)
    title = "Addresses of what a rank holds in a step: white is free"
    figure.suptitle("\n".join([title, *wrap(failed, 130)]), fontsize=10)
    return saved(figure, format)


def draw_bars(bars: Mapping[str, int], title: str, format: str) -> bytes:
    """ZeRO's figure 8: the largest model of each configuration, by its parameters."""
    plt = pyplot()
    from matplotlib.ticker import EngFormatter

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    drawn = axes.bar(list(bars), list(bars.values()), 0.6, color=BLUE)
    axes.bar_label(drawn, [EngFormatter(places=0, sep="")(size) for size in bars.values()], padding=2, fontsize=9)
    axes.set_ylabel("parameters of the largest model that trains")
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    return saved(figure, format)


def pyplot() -> Any:
    """Matplotlib's pyplot, which draws into files. Ranks that draw nothing never import it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def saved(figure: Any, format: str) -> bytes:
    """A finished figure as the content of a file."""
    picture = BytesIO()
    figure.savefig(picture, format=format, dpi=110)
    pyplot().close(figure)
    return picture.getvalue()
