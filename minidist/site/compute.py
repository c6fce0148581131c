"""What the pages that compute show. The same functions draw a page's first view when the site is built, and every other
view in the reader's browser (Pyodide): so they need nothing but the standard library.

A view is HTML. It is a function of the page's settings: texts, as its form and its address have them.
"""

import json
from collections.abc import Callable
from html import escape
from types import SimpleNamespace
from typing import NamedTuple

from minidist import UsageError
from minidist.pp import draw
from minidist.pp.schedules import SCHEDULES
from minidist.pp.timeline import Timeline, in_flight

Settings = dict[str, str]

# ---- schedules -------------------------------------------------------------------------------------------------------

FILL = {"F": "#4c8fdb", "B": "#58a55c", "W": "#e88a3a", "F&B": "#a37acc"}
WIDTH, LEFT = 960, 70  # of a drawing, in its own units, and of what stands left of the lines
ROW, HIGH = 26, 22  # of a stage's line, and of its boxes


class Drawn(NamedTuple):
    """A schedule on the clock, and the chunks of a stage: a chunk takes a v-th of the stage's time."""

    name: str
    timelines: list[Timeline]
    v: int

    @property
    def step(self) -> float:
        """In units of a stage's time."""
        return max(one.end for one in self.timelines) / self.v


def view_schedules(settings: Settings) -> str:
    """Two schedules, one under the other, at the same scale. One that is not defined for these numbers says why."""
    found = [perform(settings[which], settings) for which in ("first", "second")]
    end = max((one.step for one in found if isinstance(one, Drawn)), default=1.0)
    until = float(settings["until"])
    return "\n".join(
        draw_timelines(one, end, until) if isinstance(one, Drawn) else f'<p class="refused">{one}</p>' for one in found
    )


def perform(name: str, settings: Settings) -> Drawn | str:
    asked = SimpleNamespace(
        chunks=int(settings["v"]), contiguous=0, costs=[float(settings[cost]) for cost in ("F", "B", "W", "message")]
    )
    try:
        return Drawn(name, *draw.timelines_of(name, int(settings["p"]), int(settings["m"]), asked))  # type: ignore[arg-type]
    except UsageError as error:
        return escape(str(error))


def draw_timelines(drawn: Drawn, end: float, until: float) -> str:
    """A line for each stage, and what a reader compares: time, idle share, what is held.

    end: of the scale, in units of a stage's time; until: the part of it, in percent, that is shown.
    """
    name, timelines, v = drawn
    idle = 1 - sum(one.busy for one in timelines) / (drawn.step * v * len(timelines))
    shown, scale = list[str](), (WIDTH - LEFT) / (end * v)
    for row, timeline in enumerate(timelines):
        y = row * ROW
        shown.append(f'<text x="0" y="{y + 16}">{escape(timeline.title)}</text>')
        shown.append(f'<rect x="{LEFT}" y="{y}" width="{drawn.step * v * scale:.2f}" height="{HIGH}" class="idle"/>')
        for span in timeline.spans:
            if span.start > until / 100 * end * v:
                break
            x, width = LEFT + span.start * scale, (span.end - span.start) * scale
            told = f"{span.label}: {span.start / v:g} to {span.end / v:g}"
            shown.append(
                f'<rect x="{x:.2f}" y="{y}" width="{max(width - 0.5, 0.3):.2f}" height="{HIGH}" '
                f'fill="{FILL[span.letter]}" opacity="{0.6 if span.chunk else 1}"><title>{escape(told)}</title></rect>'
            )
            if width > 14:
                shown.append(f'<text x="{x + width / 2:.2f}" y="{y + 15}" class="in">{span.micro_batch + 1}</text>')
    held = ", ".join(f"{in_flight(one) / v:g}" for one in timelines)
    told = f"{drawn.step:.4g} units of time, {idle:.1%} idle; micro-batches held at most, by stage: {held}"
    return (
        f"<figure><figcaption><strong>{escape(name)}</strong> ({escape(SCHEDULES[name].paper)}): {told}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {len(timelines) * ROW}" role="img" aria-label="{escape(name)}: {told}">'
        f"{''.join(shown)}</svg></figure>"
    )


# ---- all of them -----------------------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[Settings], str]] = {"schedules": view_schedules}


def answer(page: str, settings: str) -> str:
    """A page's view. settings: in JSON, as the page's worker sends them."""
    return VIEWS[page](json.loads(settings))
