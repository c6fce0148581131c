"""Who is in a class, and whose is a folder or file whose name an LMS has put together?

student,email,id              the first column names the student; the others are further names by which files may go
Ada Lovelace,ada@uni.edu,1815
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath

from minidist import UsageError
from minidist.classroom.handed_in import EXERCISE, Found, bare, plain

# What Moodle and Canvas put behind a name: _123_assignsubmission_file_, _LATE_123_456_exercise.
LMS = re.compile(r"(?:_\d+_assignsubmission|(?:_LATE)?_\d+_\d+).*")


class Roster:
    """The students of a class, in order; `rows` as the file has them, under `header`."""

    def __init__(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.header = list(header)
        self.rows = {row[0]: list(row) for row in rows}
        names = {
            student: {plain(name) for cell in row for name in (cell, cell.partition("@")[0])}
            for student, row in self.rows.items()
        }
        shared = Counter(name for of in names.values() for name in of)  # a section is nobody's name
        self.named = {name: student for student, of in names.items() for name in of if name and shared[name] == 1}

    def whose(self, part: str) -> str:
        """The student whose name is this folder's or file's, or one or several of the words between its underscores;
        "" if that is nobody's, or more than one's."""
        words = [plain(word) for word in bare(part).split("_")]
        runs = {" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
        students = {self.named[run] for run in {plain(part), *runs} & self.named.keys()}
        return students.pop() if len(students) == 1 else ""


def read(file: Path) -> Roster:
    """A roster from a CSV file with a header. Raises UsageError for what is none."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # as Excel writes it, too
        header, *rows = (row for row in csv.reader(io.StringIO(text, newline="")) if any(map(str.strip, row)))
    except OSError as error:
        raise UsageError(f"cannot read --roster {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--roster {file} is not UTF-8: save it as CSV UTF-8") from None
    except (csv.Error, ValueError):
        raise UsageError(f"--roster {file} is no CSV file with a header") from None
    if not rows:
        raise UsageError(f"--roster {file} has nobody in it: its first line is a header, such as student,email")
    rows = [[cell.strip() for cell in row] + [""] * (len(header) - len(row)) for row in rows]
    for number, row in enumerate(rows, 1):
        if not row[0] or len(row) > len(header):
            raise UsageError(f"--roster {file}: student {number}, {','.join(row)!r}, does not fit the header")
    twice = [name for name, number in Counter(row[0] for row in rows).items() if number > 1]
    if twice:
        raise UsageError(f"--roster {file} has {twice[0]!r} twice: let its first column be one's own")
    return Roster(header, rows)


# ---- whose is what ---------------------------------------------------------------------------------------------------


def by_student(found: Sequence[Found], roster: Roster | None, lessons: Sequence[str]) -> dict[str, list[Found]]:
    """What each has handed in: those in the roster in its order, then whoever else is in the folder."""
    owners: dict[str, list[Found]] = {student: [] for student in roster.rows} if roster else {}
    around = wrapping(found)
    for each in found:
        names = [*each.shown.parts[:-1], each.shown.stem if each.file else each.shown.name]
        known = (student for name in names if roster and (student := roster.whose(name)))
        owners.setdefault(next(known, "") or owner(each, around, lessons), []).append(each)
    return owners


def owner(found: Found, around: str, lessons: Sequence[str]) -> str:
    """STUDENT of STUDENT.py and STUDENT/..., in a folder for each lesson or not."""
    parts = found.shown.parts
    if len(parts) > 1 and parts[0] in (around, *lessons):
        inner = PurePath(*parts[1:])
        if len(inner.parts) > 1 or not EXERCISE.fullmatch(inner.stem):
            parts = inner.parts
    name = parts[0] if len(parts) > 1 or not found.file else PurePath(parts[0]).stem
    name = LMS.sub("", name) or name
    return re.sub(r" *\(\d+\)$", "", name) or name


def wrapping(found: Sequence[Found]) -> str:
    """The folder that holds all students' folders, where a zip of them all has left one; "" without such."""
    first = {each.shown.parts[0] for each in found}
    inside = {each.shown.parts[1] for each in found if len(each.shown.parts) > 2}
    files = any(len(each.shown.parts) < 3 and each.file for each in found)
    return first.pop() if len(first) == 1 and len(inside) > 1 and not files else ""
