"""The pictures of lesson 15. They draw counted and computed bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt

from minidist.classroom.notebook.drawing import canvas, show
from minidist.memory.colors import BLUE, DARK, GREEN, GREY, ORANGE, QUANTITIES, RED

STAGES = (GREY, BLUE, GREEN, ORANGE)
HELD = {  # area of the picture -> kinds of bytes
    "model states": ("parameters", "gradients", "optimizer"),
    "kept for the backward": ("activations", "ends"),
    "gathered parameters": ("gathered",),
    "a unit's gradient": ("bucket",),
}


def draw_step(history: Mapping[str, Sequence[int]], states: float, peak: float, title: str) -> int:
    """The bytes that a device holds in the course of a step, by kind, one number for each change; and two lines: model
    states, and the computed peak. Returns the most bytes that it holds."""
    held = {
        name: [sum(at) for at in zip(*(history[kind] for kind in kinds), strict=True)] for name, kinds in HELD.items()
    }
    colors = [QUANTITIES[kinds[0]] for kinds in HELD.values()]
    fig, [[ax]] = canvas(9.6, 3.8, within=(0.08, 0.99, 0.92, 0.1))
    across = range(len(next(iter(held.values()))))
    rows = [[nbytes / 1000 for nbytes in held[kind]] for kind in HELD]
    ax.stackplot(across, *rows, colors=colors, labels=list(HELD), step="post", lw=0)
    most = max(sum(at) for at in zip(*rows, strict=True))
    ax.axhline(peak / 1000, color=RED, ls="--", lw=1.3)
    ax.text(len(across), peak / 1000 + 0.02 * most, "peak, computed", color=DARK, fontsize=9, ha="right", va="bottom")
    ax.axhline(states / 1000, color=DARK, ls="--", lw=1.3)
    ax.text(0.5 * len(across), states / 2000, "model states (line: computed)", color=DARK, ha="center")
    ax.set(xlim=(0, len(across)), ylim=(0, 1.22 * most), ylabel="KB (1,000 bytes)", xticks=[])
    ax.set_xlabel("time: one step, an event for each change")
    ax.legend(frameon=False, fontsize=9, loc="upper left", ncols=4)
    ax.set_title(title, loc="left", fontsize=10)
    show(
        fig,
        f"{title}. Model states are {states / 1000:,.1f} KB all the time; the peak is {most:,.1f} KB counted and"
        f" {peak / 1000:,.1f} KB computed.",
    )
    return max(map(sum, zip(*held.values(), strict=True)))


def draw_plans(plans: Mapping[Any, tuple[float, float]], limit: float, marked: Mapping[str, Any], title: str) -> None:
    """A dot for each plan, {(stage, offload, recompute, micro): (bytes, ms)}; the limit, and some plans with names."""
    fig, [[ax]] = canvas(9.6, 4.1, within=(0.07, 0.99, 0.92, 0.13))
    for (stage, offload, recompute, _), (nbytes, time) in plans.items():
        ax.scatter(nbytes / 1000, time, s=46, color="none" if offload else STAGES[stage], edgecolor=STAGES[stage],
                   lw=1.8, marker="o" if recompute else "s")  # fmt: skip
    ax.axvline(limit / 1000, color=RED, ls="--", lw=1.4)
    times = [time for _, time in plans.values()]
    high = max(times) * 1.06
    ax.text(limit / 1000 + 8, high, "limit of a device", color=DARK, fontsize=9, va="top")
    for number, (name, plan) in enumerate(marked.items()):  # the first name goes below, where no dots are
        nbytes, time = plans[plan]
        at = (nbytes / 1000 - 150, time - 0.32 * high) if number == 0 else (nbytes / 1000 + 90, time + 0.22 * high)
        ax.annotate(name, (nbytes / 1000, time), at, fontsize=9, arrowprops={"arrowstyle": "-", "color": DARK})
    handles = [plt.Line2D([], [], marker="o", ls="", color=color) for color in STAGES]
    names = [f"stage {stage}" for stage in range(4)]
    marks = ({"marker": "s"}, {"marker": "o"}, {"marker": "o", "markerfacecolor": "none"})
    handles += [plt.Line2D([], [], ls="", color=DARK, **mark) for mark in marks]
    ax.legend(handles, [*names, "all kept", "recomputed", "hollow: offload"], frameon=False, fontsize=8.5,
              loc="upper right", ncols=2)  # fmt: skip
    ax.set(xlabel="most that a device holds, KB", ylabel="time of a step, ms", ylim=(0, high))
    ax.set_title(title, loc="left", fontsize=10)
    fitting = sum(nbytes <= limit for nbytes, _ in plans.values())
    words = "; ".join(
        f"{name}: {plans[plan][0] / 1000:,.0f} KB, {plans[plan][1]:.1f} ms" for name, plan in marked.items()
    )
    show(
        fig,
        f"{title}. {len(plans)} plans, {fitting} of them within the limit of {limit / 1000:,.0f} KB; the fastest of all"
        f" takes {min(times):.1f} ms and the slowest {max(times):.1f}. {words}.",
    )
