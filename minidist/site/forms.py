"""The forms of the pages that compute: their settings, with the values of the first view."""

import html
from collections.abc import Sequence
from typing import NamedTuple

from minidist.pp.schedules import SCHEDULES


class Choice(NamedTuple):
    """One of several words."""

    name: str
    label: str
    value: str
    words: Sequence[str]

    def as_html(self) -> str:
        marks = {word: " selected" * (word == self.value) for word in self.words}
        options = "".join(f"<option{mark}>{html.escape(word)}</option>" for word, mark in marks.items())
        return f'<label>{html.escape(self.label)} <select name="{self.name}">{options}</select></label>'


class Slider(NamedTuple):
    """A number between two others."""

    name: str
    label: str
    value: float
    least: float
    most: float
    step: float = 1

    def as_html(self) -> str:
        numbers = f'min="{self.least:g}" max="{self.most:g}" step="{self.step:g}" value="{self.value:g}"'
        shown = f'<output for="{self.name}">{self.value:g}</output>'
        return (
            f"<label>{html.escape(self.label)} {shown} "
            f'<input type="range" id="{self.name}" name="{self.name}" {numbers}></label>'
        )


class Page(NamedTuple):
    """A page that computes."""

    name: str
    title: str
    text: str
    settings: Sequence[Choice | Slider]

    def first(self) -> dict[str, str]:
        """The settings of the first view, as the form gives them."""
        return {one.name: f"{one.value:g}" if isinstance(one, Slider) else one.value for one in self.settings}

    def form(self) -> str:
        inputs = "\n".join(one.as_html() for one in self.settings)
        return f'<form class="compute" data-page="{self.name}">\n{inputs}\n</form>'


FLUSHING = [name for name, schedule in SCHEDULES.items() if schedule.flushes]

SCHEDULES_PAGE = Page(
    "schedules",
    "Pipeline schedules",
    "Each line is a stage, each box a piece of work: F a forward, B a backward of the input, W one of the weights;\n"
    "pale boxes are later chunks. The orders are those of `minidist/pp/schedules.py`, the times those of its clock.",
    [
        Choice("first", "schedule", "1f1b", FLUSHING),
        Choice("second", "compared with", "zb-v", FLUSHING),
        Slider("p", "stages p", 4, 1, 16),
        Slider("m", "micro-batches m", 8, 1, 64),
        Slider("v", "chunks v, where they can be chosen", 2, 2, 8),
        Slider("F", "time of F", 1, 0.1, 3, 0.1),
        Slider("B", "time of B", 1, 0.1, 3, 0.1),
        Slider("W", "time of W", 1, 0.1, 3, 0.1),
        Slider("message", "time of a message", 0, 0, 2, 0.05),
        Slider("until", "shown, percent of the step", 100, 1, 100),
    ],
)

PAGES = [SCHEDULES_PAGE]
