"""The forms of the pages that compute: their settings, with the values of the first view."""

import html
from collections.abc import Sequence
from typing import NamedTuple

from minidist.cli.models import MODELS
from minidist.papers.context import SCHEMES
from minidist.papers.mixed_precision import BYTES
from minidist.plan.search import RECOMPUTE
from minidist.pp.schedules import SCHEDULES


class ChoiceField(NamedTuple):
    """A choice of one of several words."""

    name: str
    label: str
    value: str
    words: Sequence[str]

    def as_html(self) -> str:
        marks = {word: " selected" * (word == self.value) for word in self.words}
        options = "".join(f"<option{mark}>{html.escape(word)}</option>" for word, mark in marks.items())
        return f'<label>{html.escape(self.label)} <select name="{self.name}">{options}</select></label>'


class Slider(NamedTuple):
    """A slider for a number from `least` to `most`."""

    name: str
    label: str
    value: float
    least: float
    most: float
    step: float = 1

    def as_html(self) -> str:
        numbers = f'min="{self.least:g}" max="{self.most:g}" step="{self.step:g}" value="{self.value:g}"'
        return slider(self.name, self.label, f"{self.value:g}", numbers)


class Powers(NamedTuple):
    """A slider for a power of two from `least` to `most`; it moves the exponent."""

    name: str
    label: str
    value: int
    most: int
    least: int = 1

    def as_html(self) -> str:
        least, most, value = (number.bit_length() - 1 for number in (self.least, self.most, self.value))
        numbers = f'data-powers min="{least}" max="{most}" value="{value}"'
        return slider(self.name, self.label, str(self.value), numbers)


def slider(name: str, label: str, shown: str, numbers: str) -> str:
    """A slider as HTML. shown: the value in the label; numbers: the attributes for least, most and value."""
    return (  # without `for`, it would label the first field in it, the output
        f'<label for="{name}">{html.escape(label)} <output for="{name}">{shown}</output> '
        f'<input type="range" id="{name}" name="{name}" {numbers}></label>'
    )


class Text(NamedTuple):
    """A field for text; the view is updated when the reader leaves the field or presses Enter."""

    name: str
    label: str
    value: str
    lines: int = 1

    def as_html(self) -> str:
        label, value = html.escape(self.label), html.escape(self.value)
        if self.lines > 1:
            return (
                f'<label class="long">{label} <textarea name="{self.name}" rows="{self.lines}" spellcheck="false">'
                f"{value}</textarea></label>"
            )
        return f'<label>{label} <input type="text" name="{self.name}" value="{value}"></label>'


Setting = ChoiceField | Slider | Powers | Text


class Page(NamedTuple):
    """A page that computes."""

    name: str
    title: str
    text: str
    settings: Sequence[Setting]

    def first(self) -> dict[str, str]:
        """The settings of the first view, as the form gives them."""
        return {one.name: f"{one.value:g}" if isinstance(one, Slider) else str(one.value) for one in self.settings}

    def form(self) -> str:
        inputs = "\n".join(one.as_html() for one in self.settings)
        return f'<form class="compute" data-page="{self.name}">\n{inputs}\n</form>'


FLUSHING = [name for name, schedule in SCHEDULES.items() if schedule.flushes]

SCHEDULES_PAGE = Page(
    "schedules",
    "Pipeline schedules",
    "Each line is a stage, each box a piece of work, with the number of its micro-batch. Pale boxes are later chunks.\n"
    "In gray time a stage is idle. The orders are those of `minidist/pp/schedules.py`, the times those of its clock.\n"
    "Compare two of them, step through both, or write an order of your own: the clock says whether it works.",
    [
        ChoiceField("first", "schedule", "1f1b", FLUSHING),
        ChoiceField("second", "compared with", "zb-v", FLUSHING),
        Slider("p", "stages p", 4, 1, 16),
        Slider("m", "micro-batches m", 8, 1, 32),
        Slider("v", "chunks v (some schedules)", 2, 2, 4),
        Slider("F", "time of F", 1, 0.1, 3, 0.1),
        Slider("B", "time of B", 1, 0.1, 3, 0.1),
        Slider("W", "time of W", 1, 0.1, 3, 0.1),
        Slider("message", "time of a message", 0, 0, 2, 0.05),
        Slider("until", "shown, percent of the time", 100, 0, 100, 0.01),
        Text("order", "by hand: a line for each stage, such as F1 F2 B1 B2", "", lines=4),
    ],
)

MEMORY_PAGE = Page(
    "memory",
    "Memory of a rank",
    "What the fullest rank holds while it trains a model, by kind, and what the busiest rank sends in a step. The\n"
    "formulas are those of `python -m minidist plan`; runs on ranks are checked by them, byte for byte.",
    [
        ChoiceField("model", "model", "llama2-7b", list(MODELS)),
        Powers("dp", "data ranks dp", 8, 1024),
        Powers("tp", "tensor ranks tp", 1, 16),
        Powers("pp", "stages pp", 2, 32),
        Powers("cp", "context ranks cp", 1, 32),
        Slider("zero", "ZeRO stage", 1, 0, 3),
        ChoiceField("recompute", "what runs again", "selective", RECOMPUTE),
        Powers("rows", "sequences of a micro-batch b", 1, 64),
        Powers("m", "micro-batches m", 8, 256),
        Slider("v", "chunks of a stage v", 1, 1, 8),
        Powers("context", "tokens of a sequence s", 4096, 131_072, 256),
        Slider("capacity", "a device's memory, GB", 80, 8, 288, 8),
        Powers("per_host", "ranks on a host", 8, 64),
    ],
)

PLAN_PAGE = Page(
    "plan",
    "Which layout of ranks?",
    "The planner's table: every layout of a model on a cluster, the fastest first. The fields are the options of\n"
    "`python -m minidist plan`. It tries them all, in your browser: with thousands of devices that takes a while.",
    [
        ChoiceField("model", "model", "gpt2-medium", list(MODELS)),
        Text("ranks", "devices", "8"),
        Text("ranks-per-host", "devices of a host", "8"),
        Text("device-memory", "memory of a device", "16GB"),
        Text("batch", "tokens of a step", "64K"),
        Text("context", "tokens of a sequence", "1024"),
        ChoiceField("precision", "precision", "bf16", list(BYTES)),
        ChoiceField("scheme", "scheme of context ranks", "ring", SCHEMES),
        Text("flops", "operations a second of a device", "989e12"),
        Text("within", "bandwidth inside a host", "450GB/s"),
        Text("across", "bandwidth to other hosts", "50GB/s"),
        Text("rows", "rows of the table", "10"),
    ],
)

PAGES = [MEMORY_PAGE, SCHEDULES_PAGE, PLAN_PAGE]
