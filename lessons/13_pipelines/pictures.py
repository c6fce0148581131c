"""The pictures of lesson 13: when tasks run, on a clock or on ranks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.colors import to_rgba

from minidist.classroom.notebook.drawing import ALL_SIDES, canvas, name_colors, show
from minidist.memory.colors import BLUE, DARK, GREEN, GREY, LIGHT, ORANGE, RANKS, RED
from minidist.pp.timeline import Mail, Timeline, write_trace
from minidist.pp.timeline import Span as Slice

COLORS = {"F": BLUE, "B": GREEN, "W": ORANGE}
Span = tuple[str, int, float, float]


def pieces(span: Sequence) -> list[tuple[str, int, float, float]]:
    """A span as it is drawn: BW is a B and a W, each with its share of the time."""
    letter, k, start, end = span[:4]
    each = (end - start) / len(letter)
    return [(one, k, start + i * each, start + (i + 1) * each) for i, one in enumerate(letter)]


def in_words(of_stage: Sequence) -> str:
    """A stage's tasks, one after another; with the chunk if it is not the first, as in F3.1."""
    return " ".join(f"{span[0]}{span[1]}" + (f".{span[4]}" if len(span) > 4 and span[4] else "") for span in of_stage)


def draw_schedules(schedules: Mapping[str, Sequence[Sequence]], title: str) -> None:
    """A panel for each schedule, a row for each stage. A span may have its chunk as a fifth number."""
    longest = max(of[-1][3] for spans in schedules.values() for of in spans)
    rows = sum(len(spans) for spans in schedules.values())
    height = 0.34 * rows + 0.55 * len(schedules) + 0.7
    fig, axes = canvas(
        9.6,
        height,
        rows=len(schedules),
        hidden=ALL_SIDES,
        sharex=True,
        within=(0.08, 0.99, 1 - 0.62 / height, 0.45 / height),
        gap=0.42,
    )
    words = []
    for ax, (name, spans) in zip(axes[:, 0], schedules.items(), strict=True):
        end = max(of[-1][3] for of in spans)
        ax.axvspan(0, end, color=LIGHT, lw=0, zorder=0)
        numbered: dict[int, list[tuple[float, int]]] = {}  # the places of each micro-batch's number
        for s, of_stage in enumerate(spans):
            drawn = [(span, piece) for span in of_stage for piece in pieces(span)]
            places = [(start, stop - start) for _, (_, _, start, stop) in drawn]
            chunks = [span[4] if len(span) > 4 else 0 for span, _ in drawn]
            paler = [0.45 if chunk else 1.0 for chunk in chunks]  # chunks other than the first
            colors = [to_rgba(COLORS[letter], pale) for pale, (_, (letter, *_)) in zip(paler, drawn, strict=True)]
            ax.broken_barh(places, (s - 0.43, 0.86), facecolors="white")
            ax.broken_barh(places, (s - 0.43, 0.86), facecolors=colors, edgecolors="white", linewidths=0.6)
            for _, (_, k, start, stop) in drawn:
                if stop - start > longest / 60:
                    numbered.setdefault(k, []).append(((start + stop) / 2, s))
        for k, at in numbered.items():  # its number as a marker, which is drawn much faster than a text for each
            ax.plot(*zip(*at, strict=True), ls="", marker=f"${k}$", ms=5, mew=0, color=DARK)
        busy = sum(stop - start for of in spans for _, _, start, stop, *_ in of)
        idle = 100 * (1 - busy / (len(spans) * end))
        ax.set(yticks=range(len(spans)), yticklabels=[f"stage {s}" for s in range(len(spans))])
        ax.set(xlim=(0, longest), ylim=(len(spans) - 0.45, -0.55))
        ax.tick_params(labelsize=8, length=0)
        ax.set_title(f"{name}: {end:g} units of time, {idle:.1f}% idle", loc="left", fontsize=9)
        orders = "; ".join(f"stage {s} {in_words(spans[s])}" for s in (0, len(spans) - 1))
        words.append(f"{name}: ends at {end:g}, {idle:.1f}% idle. The orders: {orders}.")
    axes[-1, 0].set_xlabel("time", fontsize=8.5)
    fig.suptitle(title, x=0.01, y=1 - 0.08 / height, ha="left", va="top", fontsize=10)
    name_colors(fig, {**COLORS, "idle": LIGHT}, loc="upper right", ncol=4, fontsize=8.5)
    show(fig, f"{title}. {' '.join(words)}")


def held_over_time(spans: Sequence[Span]) -> tuple[list[float], list[int]]:
    """For one stage: times, and the number of micro-batches that it holds from each of them on."""
    events = sorted(
        [(start, 1) for letter, _, start, _ in spans if letter == "F"]
        + [(end, -1) for letter, _, _, end in spans if letter in ("W", "BW")]
    )
    times, counts, now = [0.0], [0], 0
    for time, change in events:
        now += change
        if times[-1] == time:  # one goes, and another comes
            times.pop()
            counts.pop()
        times.append(time)
        counts.append(now)
    return times, counts


def draw_held(schedules: Mapping[str, Sequence[Sequence[Span]]], title: str) -> None:
    """Micro-batches held over time: a panel for each schedule, a line for each stage."""
    fig, axes = canvas(9.6, 2.7, title, columns=len(schedules), sharey=True, within=(0.06, 0.99, 0.79, 0.19), gap=0.12)
    words = []
    for ax, (name, spans) in zip(axes[0], schedules.items(), strict=True):
        for s, of_stage in enumerate(spans):
            times, counts = held_over_time(of_stage)
            ax.step(times, counts, where="post", color=RANKS[s], lw=1.5, label=f"stage {s}")
        ax.set(xlabel="time", title=name, ylim=(0, None), xlim=(0, None))
        ax.title.set_fontsize(9.5)
        peaks = ", ".join(str(max(held_over_time(of_stage)[1])) for of_stage in spans)
        words.append(f"{name}: at most {peaks}, stage by stage.")
    axes[0, 0].set_ylabel("micro-batches held")
    axes[0, -1].legend(frameon=False, fontsize=8, loc="upper right")
    show(fig, f"{title}. {' '.join(words)}")


def draw_goal(limits: Sequence[int], lines: Mapping[str, Sequence[float]], title: str) -> None:
    """Idle time for each limit of micro-batches held; a line for each schedule."""
    fig, [[ax]] = canvas(9.6, 3.0, within=(0.07, 0.74, 0.9, 0.16))
    words = []
    styles = [(GREY, "-", None), (BLUE, "-", "o"), (RED, "--", "s"), (GREEN, ":", None)]
    for (color, dashes, marker), (name, idle) in zip(styles, lines.items(), strict=False):
        ax.plot(limits, idle, color=color, ls=dashes, marker=marker, lw=1.8, label=name)
        words.append(f"{name}: {', '.join(f'{value:g}' for value in idle)}.")
    ax.set(xlabel="micro-batches that a stage may hold", ylabel="units of idle time", ylim=(0, None), xticks=limits)
    ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.set_title(title, loc="left", fontsize=10)
    show(fig, f"{title}, for {limits[0]} to {limits[-1]} micro-batches. {' '.join(words)}")


def save_trace(spans: Sequence[Sequence[Span]]) -> str:
    """Write a trace for Perfetto, and return its path. Like predictions, it goes into work/."""
    here = Path.cwd()
    folder = here.parents[1] / "work" / here.name if here.parent.name == "lessons" else here
    folder.mkdir(parents=True, exist_ok=True)
    timelines = []
    for s, of_stage in enumerate(spans):
        timeline = Timeline(f"stage {s}")
        for span in of_stage:
            letter, k, start, end = span
            timeline.spans += [Slice(one, begun, ended, k, 0) for one, _, begun, ended in pieces(span)]
            what, step = ("activations", 1) if letter == "F" else ("gradients", -1)
            if letter != "W" and 0 <= s + step < len(spans):
                timeline.mail.append(Mail((what, k, min(s, s + step)), end, True))
            if letter != "W" and 0 <= s - step < len(spans):
                timeline.mail.append(Mail((what, k, min(s, s - step)), start, False))
        timelines.append(timeline)
    write_trace(str(folder / "trace.json"), timelines, [range(len(spans))])
    return f"work/{here.name}/trace.json"
