"""Timelines of pipeline schedules, by the clock of `minidist/pp/watch.py`; and of an order written by hand."""

from argparse import Namespace
from html import escape
from typing import NamedTuple

from minidist import UsageError
from minidist.colors import BLUE, GREEN, ORANGE, PURPLE
from minidist.pp import draw
from minidist.pp.by_hand import read_order, write_order
from minidist.pp.schedules import SCHEDULES
from minidist.pp.timeline import Timeline, in_flight
from minidist.pp.watch import simulate
from minidist.site.views.html import refused

FILL = {"F": BLUE, "B": GREEN, "W": ORANGE, "F&B": PURPLE}
WIDTH, LEFT = 960, 70  # of a drawing, in its own units, and of what stands left of the lines
ROW, HIGH = 26, 22  # of a stage's line, and of its boxes


class Drawn(NamedTuple):
    """A schedule on the clock, and the chunks of a stage: a chunk takes a v-th of the stage's time."""

    name: str
    source: str
    timelines: list[Timeline]
    v: int

    @property
    def step(self) -> float:
        """In units of a stage's time."""
        return max(one.end for one in self.timelines) / self.v


def view_schedules(settings: dict[str, str]) -> str:
    """Two schedules, one under the other, at the same scale; then the reader's own order, if there is one. What is not
    defined for these numbers, or cannot run, says why."""
    found = [perform(settings[which], settings) for which in ("first", "second")]
    if settings["order"].strip():
        found.append(perform_by_hand(settings))
    end = max((one.step for one in found if isinstance(one, Drawn)), default=1.0)
    until = float(settings["until"])
    drawn = [draw_timelines(one, end, until) if isinstance(one, Drawn) else refused(one) for one in found]
    return "\n".join([*drawn, order_of(settings)])


def perform(name: str, settings: dict[str, str]) -> Drawn | str:
    try:
        return Drawn(name, SCHEDULES[name].paper, *draw.timelines_of(name, *sizes(settings), options(settings)))
    except UsageError as error:
        return str(error)


def perform_by_hand(settings: dict[str, str]) -> Drawn | str:
    """The reader's order: a line for each stage, with the places of the first schedule."""
    name, lines = settings["first"], [line for line in settings["order"].splitlines() if line.strip()]
    try:
        at = draw.places_of(name, *sizes(settings), options(settings))
        if len(lines) != len(at):
            return f"by hand: {len(at)} stages need {len(at)} lines, not {len(lines)}"
        v = draw.chunks_at(at[0])
        streams = [(place, read_order(line, place)) for place, line in zip(at, lines, strict=True)]
        return Drawn("by hand", f"places of {name}", simulate(streams, *draw.costs_of(options(settings), v)), v)
    except (UsageError, ValueError) as error:
        return f"by hand: {error}"


def order_of(settings: dict[str, str]) -> str:
    """A button that copies the first schedule's order into the text to be edited."""
    name = settings["first"]
    try:
        at = draw.places_of(name, *sizes(settings), options(settings))
    except UsageError:
        return ""
    text = "\n".join(write_order(SCHEDULES[name].instructions(place)) for place in at)
    told = f"Edit the order of {name} by hand"
    return f'<p><button type="button" data-fills="order" data-text="{escape(text)}">{escape(told)}</button></p>'


def sizes(settings: dict[str, str]) -> tuple[int, int]:
    return int(settings["p"]), int(settings["m"])


def options(settings: dict[str, str]) -> Namespace:
    costs = [float(settings[cost]) for cost in ("F", "B", "W", "message")]
    return Namespace(chunks=int(settings["v"]), contiguous=0, costs=costs)


def draw_timelines(drawn: Drawn, end: float, until: float) -> str:
    """A line for each stage, and what a reader compares: time, idle share, what is held.

    end: of the scale, in units of a stage's time; until: the part of it, in percent, that is shown.
    """
    name, source, timelines, v = drawn
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
        f"<figure><figcaption><strong>{escape(name)}</strong> ({escape(source)}): {told}</figcaption>"
        f'<div class="wide" tabindex="0"><svg class="timelines" viewBox="0 0 {WIDTH} {len(timelines) * ROW}"'
        f' role="img" aria-label="{escape(name)}: {told}">{"".join(shown)}</svg></div></figure>'
    )
