"""`python -m minidist lessons`: what each lesson needs, how long it takes and what one can do afterwards, as the first
cell of its notebook says."""

import json
import re
import textwrap
from pathlib import Path

import minidist
from minidist import UsageError

LESSONS = Path(minidist.__file__).parents[1] / "lessons"
ROWS = {"You need": "needs", "It takes": "takes", "You will be able to": "then you can"}
LABEL = "  {:14}"


def syllabus(lessons: Path) -> str:
    """All lessons in a folder, in lines of 80 columns. Raises UsageError where there are none."""
    notebooks = sorted(lessons.glob("*/lesson.ipynb"))
    if not notebooks:
        raise UsageError(f"there are no lessons in {lessons}: they come with a clone of the project, not with pip")
    paragraphs = []
    for notebook in notebooks:
        header = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
        title = header.splitlines()[0].removeprefix("# Lesson ")
        rows = dict(re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", header, re.MULTILINE))
        lines = [title, *(wrapped(said, plain(rows[name])) for name, said in ROWS.items())]
        paragraphs.append("\n".join(lines))
    return "\n\n".join([*paragraphs, "make lessons copies them to work/, and opens JupyterLab there."])


def plain(text: str) -> str:
    """Markdown without links and marks."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)|[`*]", r"\1", text)


def wrapped(label: str, text: str) -> str:
    indent = LABEL.format("")
    return textwrap.fill(text, 80, initial_indent=LABEL.format(label), subsequent_indent=indent)


def main() -> int:
    print(syllabus(LESSONS))
    return 0
