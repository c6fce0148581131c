"""The pictures of lesson 03. They draw what was counted on ranks, or what happened on the simulated clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt

from minidist.classroom.lesson import show

WORKERS = ["#3b6ea8", "#d99a2b", "#5a9e6f", "#b5524a"]
SERVER = "#7b5ea7"


def draw_loads(loads: Mapping[int, Sequence[float]], workers: int, title: str) -> None:
    """For each number of servers a panel: a bar for each rank, of what goes in and out there in units of S."""
    fig, axes = plt.subplots(1, len(loads), figsize=(10, 2.9), sharey=True, squeeze=False)
    for ax, (k, load) in zip(axes[0], loads.items(), strict=True):
        names = [f"w{w}" for w in range(workers)] + [f"s{i}" for i in range(k)]
        ax.bar(names, load, color=[WORKERS[0]] * workers + [SERVER] * k, width=0.7)
        for place, height in enumerate(load):
            ax.text(place, height + 0.12, f"{height:g}", ha="center", fontsize=9)
        ax.set_title(f"{k} server{'s' * (k > 1)}", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("in and out, in units of $S$")
    axes[0, 0].set_ylim(0, 1.15 * max(max(load) for load in loads.values()))
    fig.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    fig.subplots_adjust(left=0.07, right=0.99, top=0.8, bottom=0.1, wspace=0.06)
    said = [
        f"With {k} server{'s' * (k > 1)}: each worker {load[0]:g} S, each server {load[workers]:g} S."
        for k, load in loads.items()
    ]
    show(fig, f"{title}. What goes in and out of each of {workers} workers and of each server. {' '.join(said)}")


def draw_timelines(runs: Mapping[str, Any], until: float, title: str) -> None:
    """For each run a panel with a line for each worker: boxes with an iteration's number, hatched where it waits."""
    fig, axes = plt.subplots(len(runs), 1, figsize=(10, 1.45 * len(runs) + 0.7), sharex=True, squeeze=False)
    for ax, (name, run) in zip(axes[:, 0], runs.items(), strict=True):
        workers = 1 + max(read.worker for read in run.reads)
        for read in run.reads:
            if read.asked >= until:
                continue
            line, end = -read.worker, min(read.ended, until)
            if read.begun > read.asked:
                wait = min(read.begun, until) - read.asked
                ax.barh(
                    line, wait, left=read.asked, height=0.7, color="white", edgecolor="#999999", hatch="////", lw=0.5
                )
            if end > read.begun:
                ax.barh(
                    line, end - read.begun, left=read.begun, height=0.7, color=WORKERS[read.worker], edgecolor="white"
                )
                ax.text(
                    (read.begun + end) / 2, line, str(read.clock), color="white", ha="center", va="center", fontsize=8
                )
        ax.set_yticks([-w for w in range(workers)], [f"worker {w}" for w in range(workers)], fontsize=9)
        ax.set_xlim(0, until)
        ax.set_title(name, loc="left", fontsize=10)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(axis="y", length=0)
    axes[-1, 0].set_xlabel("simulated seconds")
    height = 1.45 * len(runs) + 0.7
    fig.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    fig.subplots_adjust(left=0.08, right=0.99, top=1 - 0.62 / height, bottom=0.48 / height, hspace=0.45)
    said = []
    for name, run in runs.items():
        done = [sum(read.worker == w and read.ended <= until for read in run.reads) for w in range(len(WORKERS))]
        said.append(f"{name}: iterations done by then, worker by worker: {', '.join(str(n) for n in done if n)}.")
    show(fig, f"{title}. Boxes are iterations, hatched is waiting, up to {until:g} simulated seconds. {' '.join(said)}")


def draw_weights(curves: Mapping[int, Sequence[float]], q: float, steps: int) -> None:
    """The weight after each push, a panel for each delay."""
    fig, axes = plt.subplots(1, len(curves), figsize=(10, 2.7), sharey=True, squeeze=False)
    for ax, (tau, weights), colour in zip(axes[0], curves.items(), [*WORKERS, SERVER], strict=False):
        ax.axhline(0, color="#bbbbbb", lw=0.8)
        ax.plot(weights[: steps + 1], color=colour, lw=1.5)
        ax.set_title(rf"$\tau$ = {tau}", fontsize=10)
        ax.set_xlabel("push")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("weight")
    axes[0, 0].set_ylim(-2.2, 2.2)
    fig.suptitle(
        f"Every gradient as many pushes old as τ says, q = {q:g}", x=0.01, ha="left", fontsize=11, fontweight="bold"
    )
    fig.subplots_adjust(left=0.07, right=0.99, top=0.78, bottom=0.18, wspace=0.08)
    said = [
        f"τ = {tau}: from {weights[0]:g}, the largest of the last ten before push {steps} is"
        f" {max(map(abs, weights[steps - 9 : steps + 1])):.2g} in size."
        for tau, weights in curves.items()
    ]
    show(fig, f"The weight after each push, for q = {q:g}. {' '.join(said)}")
