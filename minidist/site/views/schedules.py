"""Timelines of pipeline schedules, by the clock of `minidist/pp/watch.py`; and of an order written by hand."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import NamedTuple

from minidist import UsageError
from minidist.memory.colors import BLUE, GREEN, ORANGE, PURPLE
from minidist.pp import draw
from minidist.pp.by_hand import read_order, write_order
from minidist.pp.instructions import StagePlace, name_of_work
from minidist.pp.schedules import SCHEDULES
from minidist.pp.timeline import Timeline, WorkSpan, tell_idle
from minidist.pp.watch import simulate
from minidist.site.views.html import button, chip, first, in_words_of_form, refused

FILL = {"F": BLUE, "B": GREEN, "W": ORANGE, "F&B": PURPLE}
MEANS = {"F": "forward", "B": "backward of the input", "W": "backward of the weights", "F&B": "both overlap"}
LABELS = {"p": "stages p", "m": "micro-batches m", "v": "chunks v"}  # what the form calls the options of --draw
WIDTH, LEFT = 960, 70  # of a drawing, in its own units, and of what stands left of the lines
ROW, HIGH = 26, 22  # of a stage's line, and of its boxes
WIDE = 4  # a box that tells what it is
NEAR = 1e-4  # the slider's step, as a part of the time


class ScheduleInput(NamedTuple):
    """Sizes and times. A chunk takes a v-th of a stage's time."""

    p: int
    m: int
    v: int  # where it can be chosen
    costs: tuple[float, ...]  # of F, B, W and a message

    @property
    def sizes(self) -> draw.Sizes:
        """As the command line has them."""
        return draw.Sizes(self.p, self.m, self.v, None, self.costs)


class Drawn(NamedTuple):
    """A schedule on the clock, and the chunks of a stage."""

    name: str
    source: str
    timelines: list[Timeline]
    v: int

    @property
    def step(self) -> float:
        """In units of a stage's time."""
        return max(one.end for one in self.timelines) / self.v


def view_schedules(settings: Mapping[str, str]) -> str:
    """Which of two schedules is faster, and why; both, one under the other, at the same scale; then the reader's own
    order, if there is one. What is not defined for these numbers says why; so does an order that cannot run, below the
    form, where it was written."""
    costs = tuple(float(settings[cost]) for cost in ("F", "B", "W", "message"))
    asked = ScheduleInput(int(settings["p"]), int(settings["m"]), int(settings["v"]), costs)
    found = [perform(settings[which], asked) for which in ("first", "second")]
    story, wrong = compared([one for one in found if isinstance(one, Drawn)]), ""
    if settings["order"].strip():
        by_hand = perform_by_hand(settings["order"], settings["first"], asked)
        found, wrong = ([*found, by_hand], "") if isinstance(by_hand, Drawn) else (found, refused(by_hand))
    drawn = [one for one in found if isinstance(one, Drawn)]
    end = max((one.step for one in drawn), default=1.0)
    moments = sorted({0.0, end, *(span.end / one.v for one in drawn for row in one.timelines for span in row.spans)})
    now = float(settings["until"]) / 100 * end
    nearest = min(moments, key=lambda moment: abs(moment - now))
    now = nearest if abs(nearest - now) <= NEAR * end else now  # the slider's steps do not meet it exactly
    shown = [draw_timelines(one, end, now) if isinstance(one, Drawn) else refused(one) for one in found]
    told = [story, row_of(step_buttons(moments, now)), legend(drawn), *shown]
    return "\n".join([first("\n".join(told)), wrong, row_of(order_buttons(settings, asked))])


def row_of(buttons: Iterable[str]) -> str:
    return f'<p class="buttons">{" ".join(buttons)}</p>'


def compared(drawn: Sequence[Drawn]) -> str:
    """In a sentence: which of two different schedules is faster, why, and what it holds."""
    if len({one.name for one in drawn}) < 2:
        return ""
    fast, slow = sorted(drawn, key=lambda one: one.step)
    seen = [draw.figures(one.timelines, one.v) for one in (fast, slow)]
    times, idle, held = ([of[name] for of in seen] for name in ("time", "idle", "in_flight"))
    less = 1 - times[0] / times[1]
    faster = (
        f"{fast.name} takes {less:.1%} less time than {slow.name}"
        if less > 5e-4
        else f"{fast.name} takes as long as {slow.name}"
    )
    return (
        f"<p><strong>{escape(faster)}</strong>: {times[0]:.4g} units of time against {times[1]:.4g}. Its stages idle"
        f" {idle[0]:.1%} of them, against {idle[1]:.1%}; a stage holds at most {max(held[0]):g} micro-batches, against"
        f" {max(held[1]):g}.</p>"
    )


@lru_cache(maxsize=8)  # another part of the time, or another order by hand, needs no new run
def perform(name: str, asked: ScheduleInput) -> Drawn | str:
    try:
        return Drawn(name, SCHEDULES[name].paper, *draw.timelines_of(name, asked.sizes))
    except UsageError as error:
        return in_words_of_form(str(error), LABELS)


@lru_cache(maxsize=2)
def perform_by_hand(order: str, name: str, asked: ScheduleInput) -> Drawn | str:
    """The reader's order: a line for each stage, with the places of the schedule of this name."""
    lines = [line for line in order.splitlines() if line.strip()]
    try:
        at = places(name, asked)
        if len(lines) != len(at):
            return f"by hand: {len(at)} stages need {len(at)} lines, not {len(lines)}"
        v = draw.chunks_at(at[0])
        streams = [(place, read_order(line, place)) for place, line in zip(at, lines, strict=True)]
        return Drawn("by hand", f"places of {name}", simulate(streams, *draw.costs_of(asked.costs, v)), v)
    except (UsageError, ValueError) as error:
        return f"by hand: {error}"


def places(name: str, asked: ScheduleInput) -> list[StagePlace]:
    return draw.places_of(name, asked.sizes)


# ---- what the reader may press ---------------------------------------------------------------------------------------


def step_buttons(moments: Sequence[float], now: float) -> Iterator[str]:
    """To the moment before and after this one at which a piece of work ends."""
    end = moments[-1]
    before = max((moment for moment in moments if moment < now - NEAR * end), default=0.0)
    after = min((moment for moment in moments if moment > now + NEAR * end), default=end)
    yield button("Start", "until", "0")
    yield button("Back", "until", f"{100 * before / end:.2f}", disabled=now <= 0)
    yield button("Next", "until", f"{100 * after / end:.2f}", disabled=now >= end)
    yield button("End", "until", "100")


def order_buttons(settings: Mapping[str, str], asked: ScheduleInput) -> Iterator[str]:
    """Copy the first schedule's order into the text to be edited; take the text away."""
    name = settings["first"]
    if isinstance(perform(name, asked), Drawn):
        yield button(f"Edit the order of {name} by hand", "order", order_of(name, asked))
    if settings["order"].strip():
        yield button("Remove the order by hand", "order", "")


@lru_cache(maxsize=2)
def order_of(name: str, asked: ScheduleInput) -> str:
    """A line for each stage."""
    return "\n".join(write_order(SCHEDULES[name].instructions(place)) for place in places(name, asked))


# ---- the picture -----------------------------------------------------------------------------------------------------


def legend(drawn: Sequence[Drawn]) -> str:
    letters = {span.letter for one in drawn for timeline in one.timelines for span in timeline.spans}
    words = [f"{chip(FILL[letter])}{escape(letter)}: {MEANS[letter]}" for letter in FILL if letter in letters]
    return f'<p class="legend">{" ".join(f"<span>{word}</span>" for word in words)}</p>'


def draw_timelines(drawn: Drawn, end: float, now: float) -> str:
    """A line for each stage, and what a reader compares: time, idle share, what is held.

    end: of the scale, in units of a stage's time; now: the moment until which it is shown.
    """
    name, source, timelines, v = drawn
    scale, until, near = (WIDTH - LEFT) / (end * v), now * v, NEAR * end * v
    shown = list[str]()
    for row, timeline in enumerate(timelines):
        y = row * ROW
        shown.append(f'<text x="0" y="{y + 16}">{escape(timeline.title)}</text>')
        shown.append(f'<rect x="{LEFT}" y="{y}" width="{drawn.step * v * scale:.2f}" height="{HIGH}" class="idle"/>')
        spans = [span for span in timeline.spans if span.start < until - near]
        wide = [span for span in spans if (span.end - span.start) * scale >= WIDE]
        shown += [draw_span(span, y, scale, v, until) for span in wide]
        shown += draw_narrow([span for span in spans if (span.end - span.start) * scale < WIDE], y, scale)
    if now < end - NEAR * end:
        x = LEFT + until * scale
        shown.append(f'<rect x="{x:.2f}" y="0" width="1.5" height="{len(timelines) * ROW}" class="line"/>')
    told = sum_up(drawn)
    at = f"<p>{tell_moment(drawn, now, NEAR * end)}</p>" if now < drawn.step - NEAR * end else ""
    return (
        f"<figure><figcaption><strong>{escape(name)}</strong> ({escape(source)}):"
        f' <span class="figure">{told}</span></figcaption>'
        f'<div class="wide" tabindex="0"><svg class="timelines" viewBox="0 0 {WIDTH} {len(timelines) * ROW}"'
        f' role="img" aria-label="{escape(name)}: {told}">{"".join(shown)}</svg></div>{at}</figure>'
    )


def draw_span(span: WorkSpan, y: int, scale: float, v: int, until: float) -> str:
    """A box as long as the work, or as its part until then; with the micro-batch, if there is room."""
    x, width = LEFT + span.start * scale, (min(span.end, until) - span.start) * scale
    told = f"{work_of(span)}: {span.start / v:g} to {span.end / v:g}"
    box = (
        f'<rect x="{x:.2f}" y="{y}" width="{max(width - 0.5, 0.3):.2f}" height="{HIGH}" '
        f'fill="{color_of(span.letter, span.chunk > 0)}"><title>{escape(told)}</title></rect>'
    )
    number = str(span.micro_batch) if not span.along else f"{span.micro_batch}&{span.along[0]}"
    if width < 7 * len(number):
        return box
    return f'{box}<text x="{x + width / 2:.2f}" y="{y + 15}" class="in">{escape(number)}</text>'


def draw_narrow(spans: Sequence[WorkSpan], y: int, scale: float) -> Iterator[str]:
    """Boxes too narrow to be pointed at, those of one color as one path: a browser draws thousands."""
    kinds = sorted({(span.letter, span.chunk > 0) for span in spans})
    for letter, later in kinds:
        boxes = [span for span in spans if (span.letter, span.chunk > 0) == (letter, later)]
        path = "".join(
            f"M{LEFT + span.start * scale:.2f} {y}h{(span.end - span.start) * scale * 0.9:.2f}v{HIGH}"
            f"h-{(span.end - span.start) * scale * 0.9:.2f}z"
            for span in boxes
        )
        yield f'<path d="{path}" fill="{color_of(letter, later)}"/>'


def color_of(letter: str, later: bool) -> str:
    """A later chunk is half white: its number can be read in the dark, too."""
    if not later:
        return FILL[letter]
    parts = (int(FILL[letter][i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{(part + 255) // 2:02x}" for part in parts)


def sum_up(drawn: Drawn) -> str:
    seen = draw.figures(drawn.timelines, drawn.v)
    held = ", ".join(f"{most:g}" for most in seen["in_flight"])
    idle = tell_idle(drawn.timelines)
    return f"{seen['time']:.4g} units of time, {idle}; micro-batches held at most, by stage: {held}"


def tell_moment(drawn: Drawn, now: float, near: float) -> str:
    """What each stage does just before this moment."""
    doing = []
    for timeline in drawn.timelines:
        under_way = [span for span in timeline.spans if span.start < (now - near) * drawn.v <= span.end]
        idles = "waits" if now * drawn.v < timeline.end else "has ended"
        doing.append(f"{timeline.title} {work_of(under_way[0]) if under_way else idles}")
    return escape(f"Until time {now:.4g}: {', '.join(doing)}.")


def work_of(span: WorkSpan) -> str:
    """As it is written by hand; of two that overlap, both."""
    if span.along:
        return f"{name_of_work('F', span.micro_batch, span.chunk)}&{name_of_work('B', *span.along)}"
    return name_of_work(span.letter, span.micro_batch, span.chunk)
