"""The pictures and tables of lesson 01: results of the ranks, and the master's log."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt

from minidist.classroom.notebook.drawing import canvas, show
from minidist.memory.colors import BLUE, DARK, GREEN, LIGHT, ORANGE, RANKS, RED

MAP, REDUCE, AGAIN = BLUE, ORANGE, RED


def draw_shuffle(regions: Sequence[Sequence[str]], runs: Sequence[Sequence[str]], title: str) -> None:
    """The regions of each map rank for each reduce rank, and the runs that each of these has received.

    regions[rank][r] and runs[r][rank] are texts with a pair on each line.
    """
    n = len(regions)
    deepest = max(len(text.splitlines()) for of_rank in regions for text in of_rank)
    height = 0.22 * deepest + 0.2
    fig, [[ax]] = canvas(10.5, height * n + 1.0, title, bold=True, within=(0.0, 1.0, 1 - 0.3 / (height * n + 1.0), 0.0))
    ax.set(xlim=(-1.1, n), ylim=(-n * height, 0.62))
    ax.axis("off")
    for r in range(n):
        ax.text(r + 0.46, 0.2, f"to reduce task {r}\non rank {r}", ha="center", fontsize=9, color=DARK)
        for rank in range(n):
            arrived = runs[r][rank] == regions[rank][r]
            top, own = -rank * height, rank == r
            ax.add_patch(
                plt.Rectangle(
                    (r + 0.02, top - height + 0.04),
                    0.88,
                    height - 0.08,
                    facecolor=LIGHT if own else "white",
                    edgecolor=RANKS[r],
                    lw=2,
                    ls="--" if own else "-",
                )
            )
            said = regions[rank][r].replace("\t", "  ") or "nothing" if arrived else "has not\narrived"
            for place, line in enumerate(said.splitlines()):
                style = "normal" if "  " in line else "italic"
                ax.text(
                    r + 0.08,
                    top - 0.1 - 0.22 * place,
                    line,
                    va="top",
                    fontsize=9,
                    family="monospace",
                    color=DARK,
                    style=style,
                )
    for rank in range(n):
        ax.text(-0.08, -(rank + 0.5) * height, f"map task {rank}\non rank {rank}", ha="right", va="center", fontsize=9)
    show(fig, _shuffle_in_words(regions, runs, title))


def _shuffle_in_words(regions: Sequence[Sequence[str]], runs: Sequence[Sequence[str]], title: str) -> str:
    words = [f"{title}. A table with a row for each map task and a column for each reduce task."]
    for rank, of_rank in enumerate(regions):
        has = [
            f"for {r} {_pairs(text) if runs[r][rank] == text else 'what has not arrived'}"
            for r, text in enumerate(of_rank)
        ]
        words.append(f"Map task {rank} has {'; '.join(has)}.")
    return " ".join([*words, "Dashed: a region that stays on its rank."])


def _pairs(text: str) -> str:
    return ", ".join(line.replace("\t", " ") for line in text.splitlines()) or "nothing"


def draw_bytes(counted: Mapping[str, Sequence[int]], computed: Mapping[str, Sequence[int]]) -> None:
    """Bytes that each rank sends in the shuffle, with and without a combiner: bars are counted, ticks computed."""
    fig, [[ax]] = canvas(8, 3.4, within=(0.1, 0.98, 0.88, 0.1))
    ranks = range(len(next(iter(counted.values()))))
    for k, (name, sent) in enumerate(counted.items()):
        places = [rank + 0.4 * k - 0.2 for rank in ranks]
        ax.bar(places, [n / 1000 for n in sent], 0.36, color=(RED, GREEN)[k], label=f"{name}, counted")
        ticks = [n / 1000 for n in computed[name]]
        ax.hlines(
            ticks, [x - 0.2 for x in places], [x + 0.2 for x in places], color="black", label="computed" * (k == 0)
        )
    ax.set(xticks=ranks, xticklabels=[f"rank {rank}" for rank in ranks], ylabel="thousand bytes sent")
    ax.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=9)
    bars = "; ".join(f"{name}: {', '.join(f'{n:,}' for n in sent)}" for name, sent in counted.items())
    show(fig, f"Bars: bytes that ranks 0 to 3 send in the shuffle. {bars}. The computed values lie on top of the bars.")


def draw_worker(events: Sequence[Any], lost: int, death: float, title: str) -> None:
    """Tasks over time: the lost worker on top, and below it the workers that do its tasks again."""
    again = {(event.kind, event.number) for event in events if event.what == "again"}
    begun: dict[tuple[int, str, int], float] = {}
    bars = []  # (worker, task, from, to)
    for event in events:
        who = event.worker, event.kind, event.number
        if event.what == "assigned":
            begun[who] = event.seconds
        elif event.what == "done":
            bars.append((event.worker, who[1:], begun.pop(who), event.seconds))
        elif event.what == "lost" and event.kind:
            bars.append((event.worker, who[1:], begun.pop(who), death))
    helpers = sorted({worker for worker, task, start, _ in bars if task in again and start > death})
    rows = {worker: place for place, worker in enumerate([lost, *helpers])}
    fig, [[ax]] = canvas(10.5, 0.3 * len(rows) + 1.3, title, hidden=("top", "right", "left"), bold=True)
    for worker, task, start, end in bars:
        if worker in rows:
            repeated = task in again and start > death
            color = AGAIN if repeated else MAP if task[0] == "map" else REDUCE
            ax.barh(rows[worker], end - start, left=start, height=0.72, color=color, edgecolor="white", lw=0.8)
    ax.plot(death, 0, marker="x", color="black", ms=9, mew=2)
    ax.text(death + 12, 0, "stops answering", va="center", fontsize=9)
    for label, color in (("map", MAP), ("reduce", REDUCE), ("done again", AGAIN)):
        ax.bar(0, 0, color=color, label=label)
    ax.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0.0, 1.0), fontsize=9)
    ax.set(
        yticks=range(len(rows)),
        yticklabels=[f"worker {worker}" for worker in rows],
        xlabel="time, in simulated seconds",
    )
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, None))
    ax.tick_params(labelsize=9, length=0)
    height = 0.3 * len(rows) + 1.3
    fig.subplots_adjust(left=0.09, right=0.99, top=1 - 0.62 / height, bottom=0.46 / height)
    maps = sum(kind == "map" for kind, _ in again)
    show(
        fig,
        f"{title}. Worker {lost} stops at {death:g} seconds. Rows below: {len(helpers)} workers, which do its"
        f" tasks again: {maps} finished maps, and {len(again) - maps} unfinished reduce.",
    )


def print_answers(lines: Sequence[str], answers: Sequence[Mapping[str, int]]) -> None:
    """Where each process sends its words, and the counts of the reduce tasks."""
    outputs: list[Counter[str]] = [Counter() for _ in answers]
    for process, (line, where) in enumerate(zip(lines, answers, strict=True)):
        print(f"process {process} sends:", ", ".join(f"{word} to {where[word]}" for word in where))
        for word in line.split():
            outputs[where[word]][word] += 1
    print()
    for r, counts in enumerate(outputs):
        listed = [f"{word} {count}" for word, count in sorted(counts.items())]
        print(f"output of reduce task {r}:", ", ".join(listed))


def print_bytes(counted: Mapping[str, Sequence[int]], computed: Mapping[str, Sequence[int]]) -> None:
    """Bytes that each rank sends in the shuffle, by the formula and counted."""
    print(f"{'bytes sent in the shuffle':27}{'computed':>12}{'counted':>12}")
    for how in computed:
        for rank in range(4):
            print(f"{how + f', rank {rank}':27}{computed[how][rank]:>12,}{counted[how][rank]:>12,}")
        print(f"{how + ', total':27}{sum(computed[how]):>12,}{sum(counted[how]):>12,}")


def print_master(cases: Mapping[str, Any], computed: int) -> None:
    """The simulated master's decisions: cases[name] = (seconds, its log)."""
    print(f"{'':26}{'decisions':>10}{'maps again':>12}{'reduces again':>15}{'seconds':>9}")
    for name, (seconds, log) in cases.items():
        maps, reduces = (log.count("again", kind=kind) for kind in ("map", "reduce"))
        print(f"{name:26}{log.count('assigned'):>10,}{maps:>12}{reduces:>15}{seconds:>9.0f}")
    print(f"\ncomputed: M + R = {computed:,} decisions, one more for each task started again")


def print_jobs(jobs: Mapping[str, Mapping[str, Any]]) -> None:
    """Bytes of two jobs: computed, by the functions in use, by the chapter; and whether the outputs are the same."""
    print(f"{'bytes':20}{'in regions':>34}{'sent':>12}")
    print(f"{'':20}{'computed':>11}{'counted':>10}{'the chapter':>13}{'counted':>12}   same output")
    for name, job in jobs.items():
        said = "all 4 files" if job["same"] else "no"
        print(
            f"{name:20}{job['computed']:>11,}{job['in regions']:>10,}{job['chapter']:>13,}{job['sent']:>12,}   {said}"
        )
    decisions = next(iter(jobs.values()))["decisions"]
    print(f"\ndecisions of the chapter's master, in each job: {decisions} (computed: M + R = {4 + 4})\n")
