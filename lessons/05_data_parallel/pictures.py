"""The pictures and tables of lesson 05: what the ranks brought back."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from minidist.classroom.notebook.drawing import ALL_SIDES, canvas, show
from minidist.memory.colors import BLUE, DARK, LIGHT, QUANTITIES, RANKS, RED
from minidist.papers import collectives

BACKWARD, SENT = QUANTITIES["gradients"], QUANTITIES["messages"]
WAYS = {"ring": BLUE, "server": RED}
COMPUTED = {"ring": collectives.ring_all_reduce, "server": collectives.server_all_reduce}
FORMULAS = {"ring": r"ring: $2\,\Psi\,(N-1)/N$", "server": r"server: $(N-1)\,\Psi$"}


def draw_weights(weights: Mapping[str, Sequence[Sequence[float]]], title: str = "") -> None:
    """The weight of each row of a batch, rank by rank, in each of several programs: weights[program][rank][row]."""
    fig, axes = canvas(
        10, 2.7, title, columns=len(weights), sharey=True, bold=True, within=(0.08, 0.99, 0.8, 0.18), gap=0.08
    )
    for ax, (name, of_ranks) in zip(axes[0], weights.items(), strict=True):
        place = 0
        for rank, of_rows in enumerate(of_ranks):
            places = range(place, place + len(of_rows))
            ax.bar(places, of_rows, width=0.85, color=RANKS[rank])
            middle = place + len(of_rows) / 2 - 0.5
            ax.text(middle, max(of_rows) + 0.004, f"rank {rank}", ha="center", color=DARK, fontsize=9)
            place += len(of_rows)
        ax.set_title(name, loc="left", fontsize=10)
        ax.set(xlabel="row of the batch", xticks=range(place))
        ax.tick_params(length=0)
    axes[0][0].set_ylabel("weight in the gradient")
    axes[0][0].set_ylim(top=0.145)
    words = [
        f"{name}: " + ", ".join(f"rank {r} {' '.join(f'{w:.3f}' for w in of)}" for r, of in enumerate(of_ranks))
        for name, of_ranks in weights.items()
    ]
    show(fig, f"{title} The weight of each row in the gradient, rank by rank. {'; '.join(words)}.")


def draw_busiest(busiest: Mapping[tuple[str, int], int], psi: int) -> None:
    """How much the busiest rank sends in a step, over N. Dots, busiest[way, n], were counted, in numbers."""
    fig, [[ax]] = canvas(8, 3.4, within=(0.08, 0.76, 0.91, 0.15))
    every_n = range(2, 9)
    for way, formula in COMPUTED.items():
        line = [max(formula(psi, n).sent) / psi for n in every_n]
        counted = {n: numbers / psi for (of, n), numbers in busiest.items() if of == way}
        ax.plot(every_n, line, color=WAYS[way], lw=1.6, zorder=1)
        ax.scatter(counted.keys(), counted.values(), s=34, color=WAYS[way], zorder=2)
        ax.text(8.15, line[-1], FORMULAS[way], va="center", color=DARK, fontsize=11)
    ax.set(xlabel="ranks $N$", ylabel="sent by the busiest rank, in $\\Psi$", xticks=every_n, ylim=(0, 7.5))
    ax.grid(axis="y", color=LIGHT, lw=0.8)
    ax.set_axisbelow(True)
    ax.set_title("Dots: counted on ranks. Lines: the formulas.", loc="left", fontsize=10)
    words = ", ".join(f"{way} with {n} ranks {numbers / psi:.2f}" for (way, n), numbers in busiest.items())
    show(
        fig,
        "How much the busiest rank sends in a step, in units of Ψ, for 2 to 8 ranks: the server's line climbs to 7, the"
        f" ring's stays below 2. The counted dots lie on the lines: {words}.",
    )


def draw_step(steps: Mapping[str, Sequence[tuple[str, str, int]]], title: str = "") -> None:
    """One rank's events in a backward, in order: ("backward", unit, 0) and ("sends", "", bytes)."""
    height = 0.5 + 1.5 * len(steps)
    fig, axes = canvas(
        10,
        height,
        title,
        rows=len(steps),
        hidden=ALL_SIDES,
        bold=True,
        within=(0.08, 0.99, 1 - 0.62 / height, 0.1),
        gap=0.35,
    )
    words = []
    for ax, (name, events) in zip(axes[:, 0], steps.items(), strict=True):
        said = []
        for place, (what, unit, nbytes) in enumerate(events):
            back = what == "backward"
            ax.add_patch(
                plt.Rectangle(
                    (place + 0.04, 1.05 if back else 0.05), 0.92, 0.85, color=BACKWARD if back else SENT, lw=0
                )
            )
            part = back and ("backward", unit, 0) in events[place + 1 :]  # another unit adds the rest: the head is tied
            name_of = unit.replace("embedding", "embed-\nding")
            label = (f"head's part\nof {name_of}" if part else name_of) if back else f"{nbytes:,}\nbytes"
            at = (place + 0.5, 1.47 if back else 0.47)
            ax.text(*at, label, ha="center", va="center", color=DARK, fontsize=8)
            whole = f"the head's part of {unit}" if part else f"backward of {unit}"
            said.append(whole if back else f"sends {nbytes:,} bytes")
        ax.set(xlim=(0, max(map(len, steps.values()))), ylim=(0, 2), xticks=[])
        ax.set_xlabel("time, not to scale" if ax is axes[-1, 0] else "", fontsize=9)
        ax.set_yticks([0.47, 1.47], ["sends", "backward"], fontsize=9)
        ax.tick_params(length=0)
        ax.set_title(name, loc="left", fontsize=10)
        words.append(f"{name}: {', '.join(said)}")
    show(fig, f"{title} What rank 0 does in a backward, from left to right. {'. '.join(words)}.")


Plan = tuple[Sequence[float], Sequence[float], float]  # buckets: when each is ready and leaves, how long one takes


def draw_overlap(buckets: Mapping[int, Plan], compute: float) -> None:
    """When buckets are ready, leave and arrive, for several numbers of buckets."""
    plans = {f"{k} bucket{'s' * (k > 1)}": plan for k, plan in buckets.items()}
    height = 0.6 + 1.05 * len(plans)
    fig, axes = canvas(
        10,
        height,
        rows=len(plans),
        hidden=ALL_SIDES,
        sharex=True,
        within=(0.08, 0.99, 1 - 0.3 / height, 0.12),
        gap=0.45,
    )
    ends = {name: starts[-1] + takes for name, (_, starts, takes) in plans.items()}
    for ax, (name, (ready, starts, takes)) in zip(axes[:, 0], plans.items(), strict=True):
        for begin, end in zip([0.0, *ready[:-1]], ready, strict=True):
            ax.add_patch(plt.Rectangle((begin, 1.05), end - begin, 0.85, facecolor=BACKWARD, edgecolor="white", lw=1))
        for start in starts:
            ax.add_patch(plt.Rectangle((start, 0.05), takes, 0.85, facecolor=SENT, edgecolor="white", lw=1))
        ax.text(ends[name] + 0.1, 0.47, f"{ends[name]:.4g}", va="center", fontsize=10)
        ax.set(xlim=(0, max(ends.values()) * 1.05), ylim=(0, 2))
        ax.set_yticks([0.47, 1.47], ["link", "backward"], fontsize=9)
        ax.tick_params(length=0)
        ax.set_title(name, loc="left", fontsize=10)
    axes[-1, 0].set_xlabel("time, in units (simulated)")
    words = ", ".join(f"{name} at {end:.4g}" for name, end in ends.items())
    show(
        fig,
        f"Two bars for each plan: the backward, cut into buckets, which ends at {compute:g}; and below it the link, on"
        f" which a bucket leaves when it is ready and the one ahead has arrived. The last one arrives: {words}.",
    )


def print_sent(sent: Sequence[Mapping[str, int]], psi: int) -> None:
    """The bytes that each of four ranks sent in a step of the small model, next to the ring's formula."""
    print(f"\nsent in a step by each rank, with Ψ = {psi:,} numbers of 8 bytes:")
    print(f"   computed: 2Ψ(N-1)/N = {2 * psi * 3 // 4 * 8:,} bytes")
    for rank, of_rank in enumerate(sent):
        nbytes, messages = of_rank["bytes"], of_rank["messages"]
        print(f"   rank {rank}, counted: {nbytes:,} bytes = {nbytes / 8 / psi:g}Ψ, in {messages} messages")


def print_busiest(busiest: Mapping[tuple[str, int], int], psi: int) -> None:
    """The numbers behind draw_busiest."""
    print(f"{'numbers sent, in Ψ':20}{'N':>3}{'computed':>12}{'counted':>12}")
    for (way, n), numbers in busiest.items():
        computed = max(COMPUTED[way](psi, n).sent)
        print(f"{way:20}{n:>3}{computed / psi:>12.3f}{numbers / psi:>12.3f}")


def print_arrivals(buckets: Mapping[int, Plan], compute: float) -> None:
    """When the last bucket arrives: by the closed form, and as simulated."""
    print("buckets   K·max(b,c) + min(b,c)   simulated")
    for k, (_, starts, takes) in buckets.items():
        b = compute / k
        print(f"{k:7}{k * max(b, takes) + min(b, takes):>24.3f}{starts[-1] + takes:>12.3f}")


def print_steps(
    pictured: Sequence[Mapping[str, Any]], names: Sequence[str], alone: tuple[float, Sequence[np.ndarray]]
) -> None:
    """Loss, norm, bytes and buckets of a step of several engines, below those of one process."""
    print(f"{'10 sequences on 4 ranks':26}{'loss':>10}{'norm':>10}{'bytes, rank 0':>16}{'times sent':>13}")
    loss, gradients = alone
    print(f"{'one process':26}{loss:>10.6f}{np.linalg.norm(np.concatenate(gradients)):>10.6f}")
    for name in names:
        events, _, summed = pictured[0][name]
        loss = sum(of_rank[name][1] for of_rank in pictured)
        buckets = [nbytes for what, _, nbytes in events if what == "sends"]
        norm = np.linalg.norm(np.concatenate(summed))
        print(f"{name:26}{loss:>10.6f}{norm:>10.6f}{sum(buckets):>16,}{len(buckets):>13}")


def print_losses(
    ran: Mapping[tuple[str, str], Any], optimizer: str, truth: np.ndarray | None = None, limit: float = 0.0
) -> None:
    """Losses of several programs with one optimizer. If truth, the whole gradient of one process, is given: also the
    first gradient that each program applied, and how far off it is. Two programs clip it to limit."""
    gradient = "" if truth is None else f"{'first gradient: norm':>25}{'off by':>9}"
    print(f"{optimizer + ': loss at':18}" + "".join(f"{f'step {step}':>10}" for step in (1, 5, 10, 20)) + gradient)
    for name, clips in (("right", True), ("clips first", True), ("right, no clip", False), ("means of means", False)):
        losses, applied = ran[optimizer, name]
        line = f"{name:18}" + "".join(f"{losses[step - 1]:>10.4f}" for step in (1, 5, 10, 20))
        if truth is not None:
            right = truth * limit / np.linalg.norm(truth) if clips else truth
            first = np.concatenate(applied)
            off = np.linalg.norm(first - right) / np.linalg.norm(right)
            line += f"{np.linalg.norm(first):>25.4f}{off:>9.0%}"
        print(line)
    if truth is not None:
        print("off by: the distance from the right gradient, divided by the right one's norm")
