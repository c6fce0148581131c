"""A page for each student, in one file: what was earned, and for each lost part the one thing to look at next."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from minidist.classroom.grading.grade import Grade, printable
from minidist.cli.paths import write_inside

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{student}</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .4rem .6rem .4rem 0; border-bottom: 1px solid #ccc }}
td:last-child, th:last-child {{ text-align: right; white-space: nowrap }}
pre {{ font: .9rem/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0 }}
</style>
<h1>{student}</h1>
{body}
</html>
"""


def names(students: Sequence[str]) -> dict[str, str]:
    """A file name for each student: "Ada Lovelace.html"."""
    files: dict[str, str] = {}
    taken: set[str] = set()
    for student in students:
        name = bare = re.sub(r"[^\w .@-]", "_", student).strip(" .")[:100] or "_"
        number = 1
        while name.casefold() in taken:  # some file systems ignore case
            number += 1
            name = f"{bare} {number}"
        taken.add(name.casefold())
        files[student] = f"{name}.html"
    return files


def write(file: Path, student: str, grades: Sequence[Grade], problems: Sequence[str]) -> None:
    sections = [section(grade) for grade in grades if not grade.machine]
    sections += [f"<p>{escape(problem)}</p>" for problem in problems]
    page = PAGE.format(student=escape(printable(student)), body="\n".join(sections))
    write_inside(str(file.parent), file.name, page.encode(errors="backslashreplace"))


def section(grade: Grade) -> str:
    """The section of one lesson. Hidden parts count, but are not shown one by one."""
    lines = [f"<h2>{escape(grade.lesson)}: {grade.earned:g} of {grade.possible:g} points</h2>"]
    if grade.error:
        return "\n".join([*lines, f"<pre>{escape(grade.error)}</pre>"])
    lines.append("<table>\n<tr><th></th><th>part</th><th>points</th></tr>")
    said: set[str] = set()
    for part in grade.parts:
        if not part.hidden:
            mark = "✓" if part.earned == part.points else "✗"
            hint = f"\n<pre>{escape(part.message)}</pre>" if part.message else ""
            if part.message in said:  # a syntax error, above all
                hint = "\n<p>for the same reason</p>"
            said |= {part.message} - {""}
            points = f"{part.earned:g} of {part.points:g}"
            lines.append(f"<tr><td>{mark}</td><td>{escape(part.title)}{hint}</td><td>{points}</td></tr>")
    if hidden := [part for part in grade.parts if part.hidden]:
        points = f"{sum(part.earned for part in hidden):g} of {sum(part.points for part in hidden):g}"
        lines.append(f"<tr><td></td><td>your instructor's own parts</td><td>{points}</td></tr>")
    return "\n".join([*lines, "</table>"])
