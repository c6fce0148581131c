"""The pictures and tables of lesson 03: what was counted on ranks, or what happened on the simulated clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from given import bytes_into, bytes_out_of
from matplotlib.patches import Patch
from simulated import Gate, simulate

from minidist.classroom.notebook.drawing import canvas, show
from minidist.memory.colors import BLUE, DARK, GREY, LIGHT, PURPLE, RANKS
from minidist.papers import parameter_server as paper

SERVER = PURPLE


def draw_loads(loads: Mapping[int, Sequence[float]], workers: int, title: str) -> None:
    """For each number of servers a panel: for each rank a bar of what it receives and sends, in units of S."""
    fig, axes = canvas(
        10, 2.9, title, columns=len(loads), sharey=True, bold=True, within=(0.07, 0.99, 0.8, 0.16), gap=0.06
    )
    for ax, (k, load) in zip(axes[0], loads.items(), strict=True):
        names = [f"w{w}" for w in range(workers)] + [f"s{i}" for i in range(k)]
        ax.bar(names, load, color=[BLUE] * workers + [SERVER] * k, width=0.7)
        for place, height in enumerate(load):
            ax.text(place, height + 0.12, f"{height:g}", ha="center", fontsize=9)
        ax.set_title(f"{k} server{'s' * (k > 1)}", fontsize=10)
        ax.set_xlabel("rank")
    axes[0, -1].legend(
        handles=[Patch(color=BLUE, label="worker"), Patch(color=SERVER, label="server")], frameon=False, fontsize=9
    )
    axes[0, 0].set_ylabel("received + sent, in units of $S$")
    axes[0, 0].set_ylim(0, 1.15 * max(max(load) for load in loads.values()))
    said = [
        f"With {k} server{'s' * (k > 1)}: each worker {load[0]:g} S, each server {load[workers]:g} S."
        for k, load in loads.items()
    ]
    show(fig, f"{title}. Received and sent by each of {workers} workers and by each server. {' '.join(said)}")


def draw_timelines(runs: Mapping[str, Any], until: float, title: str) -> None:
    """For each run a panel with a line for each worker: boxes with an iteration's number, hatched where it waits."""
    fig, axes = canvas(
        10, 1.45 * len(runs) + 0.7, title, rows=len(runs), hidden=("top", "right", "left"), sharex=True, bold=True
    )
    for ax, (name, run) in zip(axes[:, 0], runs.items(), strict=True):
        workers = 1 + max(read.worker for read in run.reads)
        for read in run.reads:
            if read.asked >= until:
                continue
            line, end = -read.worker, min(read.ended, until)
            if read.begun > read.asked:
                wait = min(read.begun, until) - read.asked
                ax.barh(line, wait, left=read.asked, height=0.7, color="white", edgecolor=GREY, hatch="////", lw=0.5)
            if end > read.begun:
                ax.barh(
                    line, end - read.begun, left=read.begun, height=0.7, color=RANKS[read.worker], edgecolor="white"
                )
                ax.text((read.begun + end) / 2, line, str(read.clock), color=DARK, ha="center", va="center", fontsize=8)
        ax.set_yticks([-w for w in range(workers)], [f"worker {w}" for w in range(workers)], fontsize=9)
        ax.set_xlim(0, until)
        ax.set_title(name, loc="left", fontsize=10)
        ax.tick_params(axis="y", length=0)
    axes[-1, 0].set_xlabel("time, in simulated seconds")
    axes[0, 0].legend(
        handles=[
            Patch(facecolor=LIGHT, label="an iteration, with its clock (a color for each worker)"),
            Patch(facecolor="white", edgecolor=GREY, hatch="////", label="waiting"),
        ],
        **{"frameon": False, "ncols": 2, "loc": "lower right", "bbox_to_anchor": (1.0, 0.95), "fontsize": 9},
    )
    height = 1.45 * len(runs) + 0.7
    fig.subplots_adjust(left=0.08, right=0.99, top=1 - 0.62 / height, bottom=0.48 / height, hspace=0.45)
    said = []
    for name, run in runs.items():
        done = [run.count_iterations(worker, until) for worker in range(len(RANKS))]
        said.append(f"{name}: iterations done by then, worker by worker: {', '.join(str(n) for n in done if n)}.")
    show(fig, f"{title}. Boxes are iterations, hatched is waiting, up to {until:g} simulated seconds. {' '.join(said)}")


def draw_weights(curves: Mapping[int, Sequence[float]], q: float, steps: int) -> None:
    """The weight after each push, a panel for each delay."""
    title = f"The weight after each push, if every gradient is τ pushes old (q = {q:g})"
    fig, axes = canvas(
        10, 2.7, title, columns=len(curves), sharey=True, bold=True, within=(0.07, 0.99, 0.78, 0.18), gap=0.08
    )
    for ax, (tau, weights), color in zip(axes[0], curves.items(), [*RANKS, SERVER], strict=False):
        ax.axhline(0, color=GREY, lw=0.8)
        ax.plot(weights[: steps + 1], color=color, lw=1.5)
        ax.set_title(rf"$\tau$ = {tau}", fontsize=10)
        ax.set_xlabel("push")
    axes[0, 0].set_ylabel("weight")
    axes[0, 0].set_ylim(-2.2, 2.2)
    said = [
        f"τ = {tau}: from {weights[0]:g}, the largest of the last ten before push {steps} is"
        f" {max(map(abs, weights[steps - 9 : steps + 1])):.2g} in size."
        for tau, weights in curves.items()
    ]
    show(fig, f"The weight after each push, for q = {q:g}. {' '.join(said)}")


def print_traffic(sent_to: Sequence[Mapping[int, Mapping[int, int]]], size: int, workers: int) -> None:
    """Bytes that a worker and each server send and receive in an iteration with float32 weights."""
    print(f"{'':10}{'a worker, in and out':>30}{'into each server':>26}{'out of each server':>26}")
    print(f"{'bytes':10}{'computed':>17}{'counted':>13}" + f"{'computed':>14}{'counted':>12}" * 2)
    for k in sent_to[0]:
        worker = max(bytes_into(sent_to, k, rank) + bytes_out_of(sent_to, k, rank) for rank in range(workers))
        servers_in = max(bytes_into(sent_to, k, workers + i) for i in range(k))
        servers_out = max(bytes_out_of(sent_to, k, workers + i) for i in range(k))
        load = 4 * paper.server_load(size, workers, k)
        print(
            f"{k} server{'s' * (k > 1):3}{4 * paper.worker_traffic(size):>16,}{worker:>13,}"
            f"{load:>14,.0f}{servers_in:>12,}{load:>14,.0f}{servers_out:>12,}"
        )


def print_reads(runs: Mapping[str, Any]) -> None:
    """Some reads of worker 0 in each run, and the server's clocks."""
    print("worker 0, read by read:   clock  the server's clocks  staleness")
    for name, run in runs.items():
        print(name)
        for read in [read for read in run.reads if read.worker == 0][2:7]:
            print(f"{'':26}{read.clock:>5}{read.clocks!s:>21}{read.staleness:>11}")


def print_gate(gate: Gate, speeds: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """How stale a gate lets reads be, for workers of several speeds: speeds[title][worker][iteration] in seconds."""
    for title, seconds in speeds.items():
        print(f"{title:32}reads  too stale  largest staleness")
        for bound in (0, 1, 2):
            found = [read.staleness for read in simulate(seconds, gate, bound).reads]
            too_stale = sum(staleness > bound for staleness in found)
            print(f"{'':11}counting gate, bound {bound}{len(found):>5}{too_stale:>11}{max(found):>19}")


def print_limits(limits: Mapping[int, float]) -> None:
    """The largest q for each delay: computed and counted."""
    print("tau   largest q: computed   counted")
    for tau, q in limits.items():
        print(f"{tau:>3}{2 * np.sin(np.pi / (4 * tau + 2)):>22.3f}{q:>10.3f}")


def print_idle(runs: Mapping[int, Any], workers: int) -> None:
    """For each staleness bound the share of time that workers wait, and the oldest gradient."""
    print(f"{'':9}{'share of time that they wait':>40}{'oldest gradient, in pushes':>36}")
    print(f"{'staleness':9}{'printed, Li, figure 13':>26}{'counted':>14}{'computed, at most':>25}{'counted':>11}")
    for s, run in runs.items():
        printed = f"{paper.FIGURE_13[s].printed}%" if s in paper.FIGURE_13 else ""
        most = (2 * s + 1) * (workers - 1)
        print(f"{s:>9}{printed:>26}{run.idle:>14.1%}{most:>25}{run.oldest_gradient:>11}")


def print_trained(noted: Sequence[Mapping[tuple[str, int], Any]], stale: Mapping[tuple[str, int], int]) -> None:
    """Bytes that the first worker and the first server sent in 20 iterations, and how many reads were too stale."""
    print(f"{'bytes without headers':29}{'a worker pushes':>25}{'a server sends':>25}{'reads':>10}")
    print(f"{'':29}{'computed':>14}{'counted':>11}{'computed':>14}{'counted':>11}{'too stale':>10}")
    for (name, bound), count in stale.items():
        said = f"{name}, {'bsp' if bound == 0 else f'staleness {bound}'}"
        pushed, answered = (noted[rank][name, bound][1] for rank in (0, 3))
        print(
            f"{said:29}{20 * 8 * 6:>14,}{pushed:>11,}"
            f"{20 * 8 * paper.server_load(6, 3, 2):>14,.0f}{answered:>11,}{count:>10}"
        )
