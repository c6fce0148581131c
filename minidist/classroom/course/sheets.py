"""The tables that a class's points go to: points.csv, with columns that are the instructor's, and what Canvas or Moodle
import.

Sources: Canvas, lib/gradebook_importer.rb; Moodle, mod/assign/feedback/offline/importgradeslib.php.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from minidist import UsageError
from minidist.classroom.course.roster import Roster, is_canvas
from minidist.classroom.grading.grade import printable
from minidist.system.files import is_stream

MANUAL, REMARK = "manual", "remark"  # columns that the instructor fills in; more may stand on the right of the last
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes a cell that begins like this for a formula
WHO = ("email address", "id number", "username")  # by one of these Moodle's gradebook knows a student
EXPORTED = (
    "a gradebook of Canvas's (Student, ID, ..., Section), a grading worksheet of Moodle's (Identifier, ..., Grade), or"
    " its list of participants (Email address, ID number or Username)"
)


class Own(NamedTuple):
    """What an instructor has written into points.csv."""

    more: list[str]  # columns in addition to manual points and remarks
    cells: dict[str, dict[str, str]]  # student -> column -> text, if there is any

    def of(self, student: str, column: str) -> str:
        return self.cells.get(student, {}).get(column, "")

    def points(self, student: str) -> float:
        """Manual points; 0 if there are none. Raises ValueError if they are no number."""
        text = self.of(student, MANUAL).replace(",", ".")
        return float(text) if text else 0.0


def read_own(file: Path | None) -> Own:
    """The instructor's columns of a table that `points_table` has made, also if a spreadsheet has saved it since."""
    if file is None or is_stream(str(file)) or not file.is_file():
        return Own([], {})
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"--csv {file} is not UTF-8: save it as CSV UTF-8, or what you wrote in it is lost") from None
    first = text.partition("\n")[0]
    delimiter = ";" if first.count(";") > first.count(",") else ","
    header, *rows = [*csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)] or [[]]
    if REMARK not in header or MANUAL not in header:
        return Own([], {})
    remark = last(header, REMARK)
    columns = {MANUAL: last(header, MANUAL), **{header[i]: i for i in range(remark, len(header)) if header[i]}}
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        found = {name: as_was(row[i].strip()) for name, i in columns.items() if i < len(row) and row[i].strip()}
        if row and found:
            cells[as_was(row[0])] = found
    return Own([name for name, i in columns.items() if i > remark], cells)


def last(header: Sequence[str], name: str) -> int:
    return max(i for i, title in enumerate(header) if title == name)


def as_text(cell: str) -> str:
    """A cell that a spreadsheet takes as text, even if it begins like a formula, as a name may. A number stays one."""
    return f"'{cell}" if cell.startswith(FORMULA) and not re.fullmatch(r"[+-]\d+([.,]\d+)?", cell) else cell


def as_was(cell: str) -> str:
    return cell[1:] if cell.startswith(tuple(f"'{mark}" for mark in FORMULA)) else cell


def table(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([[printable(cell) for cell in row] for row in rows])
    return text.getvalue().encode(errors="backslashreplace")


def upload(
    roster: Roster, lessons: Sequence[str], points: Mapping[str, Mapping[str, float]], possible: Mapping[str, float]
) -> bytes:
    """A table that the system imports whose roster this is: its own columns that say who a student is, and points.

    points: student -> lesson -> points. possible: lesson -> how many there are. Lessons may be more columns, such as
    manual points.
    """
    titles = [title.strip().casefold() for title in roster.header]
    if is_canvas(titles):
        who = titles.index("section") + 1
        named = [column_of(roster.header[who:], lesson) for lesson in lessons]
        rows = [[*roster.header[:who], *named]]
        rows.append(["    Points Possible", *[""] * (who - 1), *(f"{possible[lesson]:g}" for lesson in lessons)])
        rows += [[*row[:who], *cells(points, student, lessons)] for student, row in roster.rows.items()]
        return table(rows)
    if is_worksheet(titles):
        grade = titles.index("grade")
        filled = {student: cells(points, student, lessons) or [""] for student in roster.rows}
        rows = [[*row[:grade], *filled[student], *row[grade + 1 :]] for student, row in roster.rows.items()]
        return table([roster.header, *rows])
    columns = [titles.index(title) for title in WHO if title in titles]
    rows = [[*(row[i] for i in columns), *cells(points, student, lessons)] for student, row in roster.rows.items()]
    return table([[*(roster.header[i] for i in columns), *lessons], *rows])


def check_upload(roster: Roster | None, lessons: Sequence[str]) -> None:
    """Raise UsageError unless the roster is one that a system has exported, for these lessons."""
    titles = [title.strip().casefold() for title in roster.header] if roster else []
    if not (is_canvas(titles) or is_worksheet(titles) or {*WHO} & {*titles}):
        raise UsageError(f"--upload needs a --roster that Canvas or Moodle has exported: {EXPORTED}")
    if is_worksheet(titles) and len(lessons) > 1:
        raise UsageError("--upload: a grading worksheet of Moodle's is for one lesson: name it with --lesson")


def is_worksheet(titles: Sequence[str]) -> bool:
    return {"identifier", "grade"} <= {*titles}


def column_of(header: Sequence[str], lesson: str) -> str:
    """The title that Canvas has for an assignment of this name, with its number: "04_ring_all_reduce (123)"."""
    return next((title for title in header if re.fullmatch(rf"{re.escape(lesson)} \(\d+\)", title)), lesson)


def cells(points: Mapping[str, Mapping[str, float]], student: str, lessons: Sequence[str]) -> list[str]:
    of = points.get(student, {})
    return [f"{of[lesson]:g}" if lesson in of else "" for lesson in lessons]
