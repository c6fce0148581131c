"""The forms of the pages that compute: their settings, with the values of the first view."""

import html
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from minidist.cli.models import MODELS
from minidist.formulas.profile import PROFILES
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


WORDS: dict[str, Sequence[str]] = {  # the lists of words that pages.toml names
    "FLUSHING": [name for name, schedule in SCHEDULES.items() if schedule.flushes],
    "MODELS": list(MODELS),
    "RECOMPUTE": RECOMPUTE,
    "PRECISIONS": list(BYTES),
    "PROFILES": list(PROFILES),
    "SCHEMES": SCHEMES,
}
KINDS: dict[str, Callable[..., Setting]] = {kind.__name__: kind for kind in (ChoiceField, Slider, Powers, Text)}


def read_pages() -> list[Page]:
    """The pages that pages.toml describes."""

    def setting(kind: str, **fields: Any) -> Setting:
        more = {"words": WORDS[fields["words"]]} if "words" in fields else {}
        return KINDS[kind](**{**fields, **more})

    written = tomllib.loads(Path(__file__).with_name("pages.toml").read_text(encoding="utf-8"))["page"]
    return [Page(**{**page, "settings": [setting(**fields) for fields in page["settings"]]}) for page in written]


PAGES = MEMORY_PAGE, SCHEDULES_PAGE, PLAN_PAGE = read_pages()
