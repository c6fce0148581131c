"""`python -m minidist lessons`: what each lesson needs, how long it takes, and what you can do afterwards.
The first cell of its notebook says so."""

import json
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

import minidist
from minidist import UsageError, how_to_make

LESSONS = Path(minidist.__file__).parents[1] / "lessons"
ROWS = {"You need": "needs", "It takes": "takes", "You will be able to": "then you can"}
LABEL = "  {:14}"


class Header(NamedTuple):
    """What the first cell of a lesson's notebook says."""

    folder: str  # "04_ring_all_reduce"
    title: str  # "04. All-reduce around a ring"
    rows: dict[str, str]  # "You need" -> Markdown


def syllabus(lessons: Path) -> str:
    """All lessons in a folder, in lines of 80 columns. Raises UsageError if there are none."""
    headers = read_headers(lessons)
    if not headers:
        raise UsageError(f"there are no lessons in {lessons}: {how_to_make('lessons')}")
    paragraphs = [
        "\n".join([header.title, *(wrapped(said, plain(header.rows[name])) for name, said in ROWS.items())])
        for header in headers
    ]
    return "\n\n".join([*paragraphs, "make lessons copies them to work/, and opens JupyterLab there."])


def read_headers(lessons: Path) -> list[Header]:
    """The headers of all lessons in a folder, in order."""
    headers = []
    for notebook in sorted(lessons.glob("*/lesson.ipynb")):
        text = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
        title = text.splitlines()[0].removeprefix("# Lesson ")
        rows = dict(re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", text, re.MULTILINE))
        headers.append(Header(notebook.parent.name, title, rows))
    return headers


def plain(text: str) -> str:
    """Markdown without links and marks."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)|[`*]", r"\1", text)


def wrapped(label: str, text: str) -> str:
    indent = LABEL.format("")
    return textwrap.fill(text, 80, initial_indent=LABEL.format(label), subsequent_indent=indent)


def main() -> int:
    print(syllabus(LESSONS))
    return 0
