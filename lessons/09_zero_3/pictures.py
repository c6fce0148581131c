"""The pictures and tables of lesson 09. They show what the ranks returned."""

from collections.abc import Mapping, Sequence

from minidist.classroom.notebook.drawing import canvas, show
from minidist.memory.colors import DARK, GREY, QUANTITIES
from minidist.papers import zero

Moment = tuple[str, str, int, int]  # direction, unit, bytes of gathered parameters, and of unreduced gradients
STATES = ("parameters", "gradients", "optimizer")
STAGE_NUMBERS = {"data parallel": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3}


def draw_moments(moments: Sequence[Moment], psi: int, title: str = "") -> None:
    """What one rank holds in addition to its shards at each moment of a step."""
    fig, [[ax]] = canvas(10, 3.6, title, bold=True, within=(0.07, 0.99, 0.84, 0.31))
    places = range(len(moments))
    gathered, buckets = ([moment[i] / psi for moment in moments] for i in (2, 3))
    ax.bar(places, gathered, width=1.0, color=QUANTITIES["gathered"], label="gathered parameters")
    ax.bar(places, buckets, width=1.0, bottom=gathered, color=QUANTITIES["bucket"], label="gradients, not yet reduced")
    ax.axhline(2, color=GREY, ls="--", lw=1.2)
    ax.text(len(moments) - 0.5, 1.97, "all parameters: $2\\Psi$", ha="right", va="top", color=DARK)
    by_height = sorted(places, key=lambda place: gathered[place] + buckets[place])
    peaks = {moments[place][:2]: place for place in by_height}  # of each unit in each direction
    ax.set_xticks(
        list(peaks.values()), [unit for _, unit in peaks], rotation=45, ha="right", rotation_mode="anchor", fontsize=9
    )
    forwards = sum(direction == "forward" for direction, *_ in moments)
    ax.axvline(forwards - 0.5, color=GREY, lw=0.8)
    ax.text(forwards / 2, 2.22, "forward", ha="center", fontweight="bold")
    ax.text((forwards + len(moments)) / 2, 2.22, "backward", ha="center", fontweight="bold")
    ax.set(
        xlim=(-1, len(moments)),
        ylim=(0, 2.15),
        ylabel="bytes, in units of $\\Psi$",
        xlabel="time: the units of one step",
    )
    ax.tick_params(axis="x", length=0)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, 0.9))
    highest = max(moments, key=lambda moment: moment[2] + moment[3])
    show(
        fig,
        f"{title} What a rank holds in addition to its shards during one step, in bytes of psi: a bump for each unit in"
        " the forward, and one for each in the backward, where its gradient comes on top. The highest is"
        f" {(highest[2] + highest[3]) / psi:.2f} psi, at {highest[1]} in the {highest[0]}; all parameters are 2 psi.",
    )


def draw_figure_1(held: Mapping[str, Sequence[int]], psi: int, size: float = 7.5e9) -> None:
    """The paper's figure 1. held[stage]: the bytes of parameters, gradients and optimizer state on one rank of 64, for
    a model of `psi` parameters. The picture scales them to `size` parameters."""
    fig, [[ax]] = canvas(10, 2.9, within=(0.12, 0.99, 0.98, 0.17))
    for row, (figure, states) in enumerate(zip(zero.FIGURE_1, held.values(), strict=True)):
        left = 0.0
        for kind, nbytes in zip(STATES, states, strict=True):
            gigabytes = nbytes / psi * size / 1e9
            ax.barh(row, gigabytes, left=left, height=0.62, color=QUANTITIES[kind], label=kind if row == 0 else None)
            left += gigabytes
        ax.text(
            left + 1,
            row,
            f"{figure.printed} GB",
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    ax.axvline(32, color=GREY, ls="--", lw=1.2, zorder=0)
    ax.text(32.6, 3.45, "a GPU of 32 GB", color=DARK, va="center", fontsize=9)
    ax.set_yticks(range(len(held)), list(held))
    ax.set(xlim=(0, 130), ylim=(3.7, -0.6), xlabel="GB on each of 64 ranks, 7.5 billion parameters")
    ax.tick_params(axis="y", length=0)
    ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.12))
    totals = {name: sum(states) / psi * size / 1e9 for name, states in held.items()}
    show(
        fig,
        "GB on each of 64 ranks for 7.5 billion parameters, counted and scaled: "
        + ", ".join(f"{name} {total:.1f}" for name, total in totals.items())
        + ". The numbers next to the bars are those that the paper prints. A dashed line stands at 32 GB.",
    )


def draw_parts(sent: Mapping[tuple[str, int], float]) -> None:
    """sent[stage, micro-batches]: what each rank sends in a step, in units of psi (N-1)/N."""
    fig, [[ax]] = canvas(10, 2.6, within=(0.07, 0.99, 0.97, 0.12))
    names, parts = list(dict.fromkeys(name for name, _ in sent)), sorted({a for _, a in sent})
    for k, name in enumerate(names):
        places, depth = [group + (k - 1.5) * 0.2 for group in range(len(parts))], (k + 1) / len(names)
        bars = ax.bar(
            places, [sent[name, a] for a in parts], 0.18, color=QUANTITIES["messages"], alpha=depth, label=name
        )
        ax.bar_label(bars, fmt="%g", color=DARK, fontsize=9)
    ax.set_xticks(range(len(parts)), [f"{a} micro-batch" + "es" * (a > 1) for a in parts])
    ax.set(ylabel="sent, in $\\Psi(N-1)/N$", ylim=(0, 1.12 * max(sent.values())))
    ax.tick_params(axis="x", length=0)
    ax.legend(frameon=False, loc="upper left", fontsize=9)
    said = "; ".join(f"{name}: " + ", ".join(f"{sent[name, a]:g}" for a in parts) for name in names)
    show(
        fig,
        f"What each rank sends in a step of {', '.join(map(str, parts))} micro-batches, in units of psi (N-1)/N,"
        f" counted. {said}.",
    )


# ---- tables ----------------------------------------------------------------------------------------------------------


def print_sizes(sizes: Mapping[str, int], held: Mapping[str, int]) -> None:
    """Parameters of each unit, and the bytes of model states that one process holds."""
    psi = sum(sizes.values())
    for name, size in sizes.items():
        print(f"{name:11}{size:>12,} parameters")
    print(f"{'total, Ψ':11}{psi:>12,}\n")
    for kind in STATES:
        print(f"{kind:11}{held[kind]:>12,} bytes = {held[kind] / psi:g}Ψ")


def print_sent(by_phase: Mapping[str, Mapping[str, int]], psi: int) -> None:
    """What rank 0 sent in a step, by phase; a number has 8 bytes."""
    print(f"\nrank 0 sent in a step (counted), with Ψ = {psi:,} numbers of 8 bytes:")
    for phase, counted in by_phase.items():
        share, messages = counted["bytes"] / 8 / psi, counted["messages"]
        print(f"   {phase:26}{counted['bytes']:>7,} bytes = {share:g}Ψ, in {messages} messages")


def print_room(memory: Mapping[str, int], moments: Sequence[Moment], sizes: Mapping[str, int]) -> int:
    """What a rank of 4 holds permanently and for a moment, counted; and the formula's bytes for more ranks.

    Returns the peak of bytes that exist only for a moment.
    """
    psi, largest = sum(sizes.values()), max(sizes.values())
    shards = sum(memory[kind] for kind in STATES)
    passing = max(gathered + bucket for _, _, gathered, bucket in moments)
    print(f"{'':9}{'shards: 16Ψ/N':>16}{'transient: 4s':>17}{'sum':>12}{'over its shards':>18}")
    rows = [(4, "counted", shards, passing)]
    rows += [(n, "computed", 16 * psi // n, 4 * largest) for n in (4, 64, 1024)]
    for n, known, held, more in rows:
        print(f"N ={n:>5}{held:>17,}{more:>17,}{held + more:>12,}{(held + more) / held:>18.2f}  {known}")
    print()
    return passing


def print_figure_1(held: Mapping[str, Sequence[int]], psi: int) -> None:
    """Rank 0's bytes of parameters, gradients and optimizer state at each stage, next to the paper's figures."""
    print(f"{'':15}{'bytes on a rank':>17}{'a parameter':>14}{'at 7.5 B':>12}{'Figure 1':>11}")
    print(f"{'':15}{'counted':>17}{'counted':>14}{'computed':>12}{'printed':>11}")
    for (name, states), figure in zip(held.items(), zero.FIGURE_1, strict=True):
        each = sum(states) / psi
        print(f"{name:15}{sum(states):>17,}{each:>14g}{7.5 * each:>9.1f} GB{figure.printed:>8} GB")


def print_traffic(traffic: Mapping[tuple[str, int], Mapping[str, int]], padded: Mapping[int, int]) -> None:
    """traffic[stage, n]: what rank 0 of n sent in a step, by phase. padded[n]: psi with its padding for n ranks."""
    print(f"{'sent by rank 0':15}{'N':>2}{'bytes: formula':>21}{'computed':>12}{'counted':>12}{'norm':>6}{'ratio':>8}")
    for (name, n), by_phase in sorted(traffic.items(), key=lambda of: (list(STAGE_NUMBERS).index(of[0][0]), of[0][1])):
        stage = STAGE_NUMBERS[name]
        norm = by_phase.get("norm", 0)
        sent = sum(by_phase.values()) - norm
        expected = 2 * sum(zero.volume(padded[n], n, stage).values())  # 2 bytes each
        ratio = sent / sum(traffic["data parallel", n].values())
        formula = f"2·{3 if stage == 3 else 2}Ψ(N-1)/N"
        print(f"{name:15}{n:>2}{formula:>21}{expected:>12,.0f}{sent:>12,}{norm:>6}{ratio:>8.2f}")


def print_phases(expected: Mapping[str, float], yours: Mapping[str, int], chapters: Mapping[str, int]) -> None:
    """Bytes of a step, by phase: by the formula (2 bytes a number), with your methods, and with the chapter's."""
    print(f"{'rank 0, bytes in a step':28}{'computed':>12}{'with yours':>12}{'the chapter':>13}")
    for phase, numbers in expected.items():
        print(f"{phase:28}{2 * numbers:>12,.0f}{yours[phase]:>12,}{chapters[phase]:>13,}")


def print_messages(of_ranks: Sequence[Mapping[str, int]]) -> None:
    """The number of messages that each rank has sent, by phase and in total."""
    phases = list(of_ranks[0])
    print(f"\n{'messages sent (counted)':28}" + "".join(f"{f'rank {rank}':>8}" for rank in range(len(of_ranks))))
    for phase in phases:
        print(f"{phase:28}" + "".join(f"{sent[phase]:>8}" for sent in of_ranks))
    print(f"{'total':28}" + "".join(f"{sum(sent.values()):>8}" for sent in of_ranks) + "\n")
