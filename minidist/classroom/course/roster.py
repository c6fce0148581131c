"""The students of a class, and the owner of a folder or file to which an LMS has given its name.

student,email,id              the first column names the student; the others are more names that files may have
Ada Lovelace,ada@uni.edu,1815
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath

from minidist import UsageError
from minidist.classroom.course.handed_in import EXERCISE, Found, bare, is_program, plain

# What Moodle and Canvas append to a name: _123_assignsubmission_file_, _LATE_123_456_exercise. The first number is the
# participant's, in a Moodle course, or the user's, in Canvas. A student of the roster may have the same one elsewhere.
LMS = re.compile(r"(?:_(\d+)_(assignsubmission)|(?:_LATE)?_(\d+)_\d+).*")
CANVAS = ("canvas id", "canvas user id", "id")  # the last one only in a file of Canvas's own


class Roster:
    """The students of a class, in order; `rows` as the file has them, under `header`."""

    def __init__(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.header = list(header)
        self.rows = {row[0]: list(row) for row in rows}
        names = {
            student: {spelled for cell in row for name in (cell, cell.partition("@")[0]) for spelled in spellings(name)}
            for student, row in self.rows.items()
        }
        shared = Counter(name for of in names.values() for name in of)  # a section is no name
        self.named = {name: student for student, of in names.items() for name in of if name and shared[name] == 1}
        ids = self.columns(CANVAS if "sis user id" in map(plain, header) else CANVAS[:-1])
        self.numbers = {
            "": {plain(row[column]): student for student, row in self.rows.items() for column in ids},
            "assignsubmission": {
                plain(row[column]).removeprefix("participant "): student
                for student, row in self.rows.items()
                for column in self.columns(["identifier"])
            },
        }

    def columns(self, titles: Sequence[str]) -> list[int]:
        return [column for column, title in enumerate(self.header) if plain(title) in titles]

    def whose(self, part: str) -> str:
        """The student whose name is this folder's or file's, or is in it as one or more words between underscores; ""
        if no student fits, or more than one. Numbers that a system has appended are no names."""
        appended = LMS.search(bare(part))
        words = [plain(word) for word in bare(part).split("_") if not (appended and word.isdigit())]
        runs = {" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
        students = {self.named[run] for run in {plain(part), *runs} & self.named.keys()}
        return students.pop() if len(students) == 1 else ""

    def by_number(self, part: str) -> str:
        """The student whose number in Moodle or Canvas this folder's or file's name has, if the roster has a column of
        that system's; else ""."""
        found = LMS.search(bare(part))
        return self.numbers[found[2] or ""].get(found[1] or found[3], "") if found else ""


def spellings(name: str) -> set[str]:
    """A name as words, and as Canvas writes it in names of files: "bobnoyce", or the last name first, "noycebob"."""
    words = plain(name).split()
    return {" ".join(words), "".join(words), "".join([*words[-1:], *words[:-1]])}


def read(file: Path) -> Roster:
    """A roster from a CSV file with a header. Raises UsageError if it is not one."""
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
    if is_canvas([title.strip().casefold() for title in header]):
        rows = [row for row in rows if row[0] not in ("", "Points Possible")]  # lines on assignments
    for number, row in enumerate(rows, 1):
        if not row[0] or len(row) > len(header):
            raise UsageError(f"--roster {file}: student {number}, {','.join(row)!r}, does not fit the header")
    twice = [name for name, number in Counter(row[0] for row in rows).items() if number > 1]
    if twice:
        raise UsageError(f"--roster {file} has {twice[0]!r} twice: let its first column be one's own")
    return Roster(header, rows)


def is_canvas(titles: Sequence[str]) -> bool:
    """Whether these are the columns of a gradebook of Canvas's."""
    return [*titles[:2]] == ["student", "id"] and "section" in titles


# ---- the owners of files ---------------------------------------------------------------------------------------------


def by_student(found: Sequence[Found], roster: Roster | None, lessons: Sequence[str]) -> dict[str, list[Found]]:
    """The files of each student: the roster's students in its order, then all others in the folder."""
    owners: dict[str, list[Found]] = {student: [] for student in roster.rows} if roster else {}
    places = [tuple(re.sub(r"\.zip$", "", part, flags=re.IGNORECASE) for part in each.shown.parts) for each in found]
    around = wrapping(places, found)
    for each, parts in zip(found, places, strict=True):
        if each.file or is_program(each):
            parts = (*parts[:-1], PurePath(parts[-1]).stem)
        looks = (roster.whose, roster.by_number) if roster else ()  # a name before any number
        known = (student for look in looks for part in parts if (student := look(part)))
        owners.setdefault(next(known, "") or owner(parts, around, lessons), []).append(each)
    return owners


def by_number_alone(found: Found, roster: Roster | None) -> bool:
    """Whether nothing but a number of Moodle's or Canvas's says whose a file is."""
    parts = [PurePath(part).stem if part.endswith(".py") else part for part in found.shown.parts]
    return roster is not None and not any(map(roster.whose, parts)) and any(map(roster.by_number, parts))


def owner(parts: Sequence[str], around: str, lessons: Sequence[str]) -> str:
    """STUDENT from STUDENT.py or STUDENT/..., inside a folder for each lesson or not."""
    if len(parts) > 1 and parts[0] in (around, *lessons) and (len(parts) > 2 or not EXERCISE.fullmatch(parts[1])):
        parts = parts[1:]
    name = LMS.sub("", parts[0]) or parts[0]
    return re.sub(r" *\(\d+\)$", "", name) or name


def wrapping(places: Sequence[Sequence[str]], found: Sequence[Found]) -> str:
    """The folder that holds all students' folders, if a zip of them all has left one; else ""."""
    first = {parts[0] for parts in places}
    inside = {parts[1] for parts in places if len(parts) > 1}
    folders = all(len(parts) > 2 or not each.file for parts, each in zip(places, found, strict=True))
    return first.pop() if len(first) == 1 and len(inside) > 1 and folders else ""
