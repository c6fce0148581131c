"""The pictures and tables of lesson 08. They show what the ranks returned."""

from collections.abc import Mapping, Sequence
from typing import Any

from minidist.classroom.notebook.drawing import canvas, show
from minidist.memory.colors import DARK, GREY, QUANTITIES

Moment = tuple[str, int, int]  # a unit, or "step"; bytes of gradients that are held permanently; bytes in buckets


def draw_gradients(steps: Mapping[str, Sequence[Moment]], psi: int, title: str = "") -> None:
    """The gradients that one rank holds at each moment of a step: a panel for each program."""
    height = 1.25 + 1.25 * len(steps)
    fig, axes = canvas(
        10, height, title, rows=len(steps), bold=True, within=(0.07, 0.99, 1 - 0.62 / height, 0.75 / height), gap=0.3
    )
    words = []
    for ax, (name, moments) in zip(axes[:, 0], steps.items(), strict=True):
        places = range(len(moments))
        permanent, in_passing = ([moment[i] / psi for moment in moments] for i in (1, 2))
        ax.bar(places, permanent, width=1.0, color=QUANTITIES["gradients"], label="held permanently")
        ax.bar(places, in_passing, width=1.0, bottom=permanent, color=QUANTITIES["bucket"], label="in buckets")
        ax.axhline(2, color=GREY, ls="--", lw=1.2)
        units = {place: unit for place, (unit, *_) in enumerate(moments) if place == 0 or moments[place - 1][0] != unit}
        for place in list(units)[1:]:
            if units[place] == moments[0][0]:  # the next micro-batch's backward
                ax.axvline(place - 0.5, color=GREY, lw=0.8)
        ax.set_xticks(list(units), list(units.values()), fontsize=8, rotation=35, ha="right", rotation_mode="anchor")
        if ax is not axes[-1, 0]:
            ax.set_xticklabels([])  # those of the last
        ax.set(xlim=(-0.6, len(moments) - 0.4), ylim=(0, 2.75), yticks=[0, 1, 2])
        ax.set_ylabel("bytes, in $\\Psi$", fontsize=9)
        ax.set_title(name, loc="left", fontsize=10, pad=4)
        ax.tick_params(axis="x", length=0, pad=2)
        highest = max(moments, key=lambda moment: moment[1] + moment[2])
        words.append(
            f"{name}: {highest[1] / psi:.2f} psi permanently and {highest[2] / psi:.2f} psi in buckets at most, at"
            f" {highest[0]}; at the end {sum(moments[-1][1:]) / psi:.2f} psi"
        )
    axes[-1, 0].set_xlabel("time: the units of one step, in its backward", fontsize=9)
    last = len(next(iter(steps.values()))) - 0.5
    axes[0, 0].text(last, 2.14, "all gradients: $2\\Psi$", ha="right", color=DARK, fontsize=9)
    axes[0, 0].legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=9)
    show(
        fig,
        f"{title} Gradients that a rank holds during the backward of a step, from left to right, in bytes of psi; all"
        f" gradients are 2 psi. {'. '.join(words)}.",
    )


# ---- tables ----------------------------------------------------------------------------------------------------------


def print_bytes_each(permanent: Mapping[str, Sequence[int]], kinds: Sequence[str], psi: int) -> None:
    """What a rank holds permanently, in bytes a parameter, by kind."""
    print(f"{'bytes a parameter':20}" + "".join(f"{kind:>12}" for kind in [*kinds, "total"]))
    for name, states in permanent.items():
        print(f"{name:20}" + "".join(f"{nbytes / psi:>12.4g}" for nbytes in [*states, sum(states)]))
    print()


def print_sent(sent: Mapping[int, Mapping[str, int]], psi: int) -> None:
    """sent[micro-batches]: the bytes that a step of the layers sends, by phase; a number has 8 bytes."""
    print(f"\nrank 0 sent in a step (counted), with Ψ = {psi:,} numbers of 8 bytes:")
    for a, by_phase in sent.items():
        for phase, nbytes in by_phase.items():
            print(f"   a = {a}   {phase:26}{nbytes:>8,} bytes = {nbytes / 8 / psi:g}Ψ")


def print_peaks(
    steps: Mapping[tuple[str, int], Mapping[str, Any]], kinds: Sequence[str], computed: Mapping[int, int]
) -> dict[tuple[str, int], int]:
    """The most bytes that rank 0 held in a step, by program and number of ranks, next to the result of `room`."""
    print(f"{'bytes':10}{'N':>3}{'gradients':>12}{'bucket':>10}{'most at a time':>16}{'room(...)':>12}")
    peaks = {}
    for (name, n), step in steps.items():
        memory = step["memory"]
        peaks[name, n] = sum(memory[kind] for kind in [*kinds, "bucket"])
        mine = f"{computed[n]:>12,}" if name == "ZeRO-2" else ""
        print(f"{name:10}{n:>3}{memory['gradients']:>12,}{memory['bucket']:>10,}{peaks[name, n]:>16,}{mine}")
    return peaks


def print_by_micro_batches(sent: Mapping[tuple[str, int], int], one_way: int) -> None:
    """sent[stage, micro-batches]: the bytes of a step. one_way: the bytes of one collective over all parameters."""
    print(f"{'bytes of a step':18}{'ZeRO-1':>9}{'2Ψ':>12}{'ZeRO-2':>14}{'(a+1)Ψ':>12}{'ZeRO-2 over ZeRO-1':>21}")
    print(f"{'micro-batches a':18}{'counted':>9}{'computed':>12}{'counted':>14}{'computed':>12}")
    for a in sorted({a for _, a in sent}):
        one, two = sent["ZeRO-1", a], sent["ZeRO-2", a]
        print(f"{a:<18}{one:>9,}{2 * one_way:>12,}{two:>14,}{(a + 1) * one_way:>12,}{two / one:>21.2g}")
    print()


def print_steps(of_ranks: Sequence[Mapping[str, Any]], titles: Mapping[str, str], kinds: Sequence[str]) -> None:
    """Loss, most memory and bytes sent in a step, for each program."""
    print(f"\n{'rank 0, two micro-batches':32}{'loss':>10}{'most at a time':>16}{'bytes sent':>13}")
    for name, title in titles.items():
        step, loss = of_ranks[0][name], sum(of_rank[name]["loss"] for of_rank in of_ranks)
        most = sum(step["memory"][kind] for kind in [*kinds, "bucket"])
        print(f"{title:32}{loss:>10.6f}{most:>16,}{sum(step['sent'].values()):>13,}")


def print_broken(
    looked: Mapping[str, Mapping[int, Mapping[str, Any]]], of_zero1: Sequence[int]
) -> tuple[dict[str, int], dict[str, dict[int, int]]]:
    """For each program: the most bytes of gradients at a time, and the bytes sent in steps of 2 and 4 micro-batches."""
    print(f"{'rank 0 of 4, bytes':20}{'most of gradients':>19}{'sent, a = 2':>14}{'sent, a = 4':>14}")
    most, sent = {}, {}
    for name, found in looked.items():
        most[name] = max(held + in_buckets for _, held, in_buckets in found[2]["history"])
        sent[name] = {a: sum(found[a]["sent"].values()) for a in (2, 4)}
        print(f"{name:20}{most[name]:>19,}{sent[name][2]:>14,}{sent[name][4]:>14,}")
    print(f"{'ZeRO1':20}{of_zero1[0]:>19,}{of_zero1[1]:>14,}{of_zero1[2]:>14,}\n")
    return most, sent
