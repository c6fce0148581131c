"""What a student has handed in, as a browser, an LMS or Gradescope leaves it: which file is which lesson's exercise?

A file is recognized by the names that it defines, or by a lesson's name among its folders; "exercise (1).py" and
"Exercise-2.py" are as good as exercise.py. Nothing is guessed: if two different files fit a lesson, both are named, and
neither is taken.
"""

import argparse
import os
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path, PurePath
from typing import NamedTuple

from minidist.classroom.grading.grade import lesson_of
from minidist.mpi.output import reason

EXERCISE = re.compile(  # possessive (++, *+): no backtracking, which would take too long for 40 digits
    r"(?:^|.*[ _-])exercise(?:[ _-]*\(?\d++\)?| ?[-–] ?copy| copy)*+", re.IGNORECASE
)
NUMBERED = re.compile(r"(?:[ _-]*\(\d+\)|-\d+)$")  # what a browser or an LMS appends to a name that it has seen before
DEBRIS = {"__MACOSX", "__pycache__", "Thumbs.db", "desktop.ini"}
LARGEST = 1 << 20  # bytes; a larger file is not searched for names
SAID = 3  # how many of a student's files a note names
DEEPEST = 50  # folders in folders that are unpacked
ENCRYPTED = 1  # a flag of a file in a zip
MARKED_LATE = re.compile(r"_LATE_\d+_\d+")  # in a name of Canvas's
UNITS = ((172_800, 86_400, "days"), (5_400, 3_600, "h"), (90, 60, "min"), (0, 1, "s"))  # from how many seconds on
UNPACKED = 100 << 20, 10_000  # bytes and files that a zip may hold


class Found(NamedTuple):
    """An entry of a folder, or of a zip in it."""

    shown: PurePath  # relative to the folder; a zip counts as a folder
    file: Path | None  # where its content is; None for an empty folder, and for what cannot be read
    trouble: str = ""  # why it cannot be read


def look(folder: Path, scratch: Path) -> list[Found]:
    """All entries of a folder, except debris such as Thumbs.db; zips are unpacked to `scratch`, one level deep."""
    found: list[Found] = []
    for file, what in walk(folder):
        shown = PurePath(os.path.relpath(file, folder))
        if what or file.suffix.lower() != ".zip" or not file.is_file():
            found.append(Found(shown, *(content(file, shown, what))))
            continue
        place = scratch / str(len(list(scratch.iterdir())))
        place.mkdir()
        trouble = unpack(file, place)
        inside = [] if trouble else [(inner, what) for inner, what in walk(place) if inner != place]
        for inner, what in inside:
            within = shown / inner.relative_to(place)
            found.append(Found(within, *content(inner, within, what)))
        if not inside:
            found.append(Found(shown, None, trouble or f"{shown} is empty"))
    return sorted(found, key=lambda each: each.shown)


def content(file: Path, shown: PurePath, what: str) -> tuple[Path | None, str]:
    """Where the content of something that `walk` found is, or why it cannot be read."""
    return (None, f"{shown} {what}") if what else (file if file.is_file() else None, "")


def walk(folder: Path) -> list[tuple[Path, str]]:
    """Files and empty folders, each with what is wrong with it, or "". Links are not followed: they may lead to another
    student's files."""
    kept: list[tuple[Path, str]] = []
    closed: list[str] = []
    for parent, folders, files in os.walk(folder, onerror=lambda error: closed.append(error.filename)):
        folders[:] = [name for name in folders if not debris(name)]
        inside = [Path(parent, name) for name in files if not debris(name)]
        linked = [Path(parent, name) for name in folders if Path(parent, name).is_symlink()]
        kept += [(each, what_is_wrong(each)) for each in (*inside, *linked)]
        if not folders and not inside:
            kept.append((Path(parent), ""))
    return kept + [(Path(name), "cannot be opened: its owner alone may") for name in closed]


def what_is_wrong(file: Path) -> str:
    """Why a file cannot be read; "" if it can."""
    if file.is_symlink():
        return "is a link: hand in the file itself"
    if not file.is_file():
        return "is no file, but a device or a pipe"
    return "" if os.access(file, os.R_OK) else "cannot be read: its owner alone may"


def debris(name: str) -> bool:
    return name.startswith((".", "~$")) or name in DEBRIS


def unpack(archive: Path, place: Path) -> str:
    """Unpack a zip; return why that failed, or ""."""
    try:
        with zipfile.ZipFile(archive) as opened:
            inside = opened.infolist()
            if sum(each.file_size for each in inside) > UNPACKED[0] or len(inside) > UNPACKED[1]:
                return f"{archive.name} holds more than {UNPACKED[0] >> 20} MB or {UNPACKED[1]:,} files"
            if any(each.flag_bits & ENCRYPTED for each in inside):
                return f"{archive.name} is locked with a password: hand it in without one"
            deepest = max((each.filename.strip("/").count("/") for each in inside), default=0)
            if deepest > DEEPEST:
                return f"{archive.name} has folders in folders, {deepest:,} deep: at most {DEEPEST} are read"
            opened.extractall(place)
            for each in inside:
                keep_time(each, place)
    except OSError as error:
        return f"{archive.name} cannot be unpacked: {reason(error)}"
    except (EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        return f"{archive.name} cannot be unpacked: {error}"
    return ""


def keep_time(each: zipfile.ZipInfo, place: Path) -> None:
    """Give an unpacked file the time that the zip has for it."""
    file = place / each.filename
    with suppress(OSError, ValueError, OverflowError):  # no such day; or unpacked under another name
        when = datetime(*each.date_time).timestamp()
        if file.is_file() and not file.is_symlink():
            os.utime(file, (when, when))


# ---- when it was handed in -------------------------------------------------------------------------------------------


def lateness(found: Found, due: float | None) -> str:
    """How late a file is: "3 h"; "as Canvas says" if its name says so; "" if it is not. due: seconds since 1970."""
    over = found.file.stat().st_mtime - due if found.file and due is not None else 0.0
    if over > 0:
        return next(f"{over / unit:.0f} {name}" for least, unit, name in UNITS if over >= least)
    return "as Canvas says" if any(map(MARKED_LATE.search, found.shown.parts)) else ""


def late(exercises: Mapping[str, Found], due: float | None) -> dict[str, str]:
    """The lessons whose exercises are late, and how late."""
    of = {lesson: lateness(found, due) for lesson, found in exercises.items()}
    return {lesson: said for lesson, said in of.items() if said}


def deadline(text: str) -> float:
    """An argument type: a minute, or a day, whose end counts, in this machine's time zone."""
    try:
        return datetime.fromisoformat(text if "T" in text or " " in text else f"{text}T23:59:59").timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be like 2026-12-01 or 2026-12-01T18:00, not {text!r}") from None


# ---- which is which --------------------------------------------------------------------------------------------------


class Sorted(NamedTuple):
    """One student's files, sorted out."""

    exercises: dict[str, Found]  # lesson's name -> its exercise
    problems: list[str]  # in words: what was found twice, what is no exercise


def sort_out(found: Sequence[Found], lessons: Sequence[Path], student: str = "") -> Sorted:
    """Which file is the exercise of which lesson. A program with the student's name counts as exercise.py."""
    parts = {file.name for lesson in lessons for file in lesson.iterdir()} - {"exercise.py"}  # copied with it
    programs = [each for each in found if each.file and is_program(each) and each.shown.name not in parts]
    belongs = {each: lesson_at(each, lessons) for each in programs}
    exercises: dict[str, Found] = {}
    problems: list[str] = []
    for lesson in lessons:
        mine = [each for each in programs if belongs[each] == lesson]
        if not mine and len(lessons) == 1:  # then its grade says what is wrong with it
            mine = [each for each in programs if is_named(each, student)]
        named = [each for each in mine if is_named(each, student)]
        chosen = distinct(named or mine, lesson / "exercise.py")
        if len(chosen) == 1:
            exercises[lesson.name] = chosen[0]
        elif chosen:
            names = named_briefly([each.shown for each in chosen])
            problems.append(f"{lesson.name} found {times(len(chosen))}, keep one: {names}")
    # Much may be unreadable, such as the links in an environment: name only what might be the exercise.
    troubles = [each for each in found if each.trouble]
    zipped = [each for each in troubles if each.shown.suffix.lower() == ".zip"]
    problems += [each.trouble for each in troubles if not exercises or each in zipped or is_named(each, student)][:SAID]
    if not exercises and not problems:
        problems = [why_not(found, programs)]
    return Sorted(exercises, problems)


def times(number: int) -> str:
    return "twice" if number == 2 else f"{number} times"


def named_briefly(files: Sequence[PurePath]) -> str:
    """The first few of these files, and how many more there are."""
    more = len(files) - SAID
    return ", ".join(map(str, files[:SAID])) + (f" and {more:,} more" if more > 0 else "")


def is_program(found: Found) -> bool:
    return found.shown.suffix.lower() == ".py"


def is_named(found: Found, student: str) -> bool:
    stem = found.shown.stem
    return bool(EXERCISE.fullmatch(stem)) or plain(student) in {plain(stem), plain(bare(stem))} - {""}


def bare(name: str) -> str:
    """A name without the number that a browser appends."""
    return NUMBERED.sub("", name)


def plain(name: str) -> str:
    """The words of a name, the same for all its spellings: in lower case, without punctuation."""
    return " ".join(re.findall(r"[^\W_]+", unicodedata.normalize("NFC", name).casefold()))


def lesson_at(found: Found, lessons: Sequence[Path]) -> Path | None:
    """The lesson that one of its folders is named after, or whose names it defines; None if there is none."""
    for lesson in lessons:
        if lesson.name in found.shown.parts[:-1]:
            return lesson
    if found.file is None or found.file.stat().st_size > LARGEST:
        return None
    return lesson_of(found.file, lessons)


def distinct(found: Sequence[Found], skeleton: Path) -> list[Found]:
    """One file of each content; the unchanged skeleton only if there is nothing else."""
    contents: dict[bytes, Found] = {}
    for each in found:
        if each.file:
            contents.setdefault(each.file.read_bytes(), each)
    if len(contents) > 1:
        contents.pop(skeleton.read_bytes(), None)
    return list(contents.values())


def why_not(found: Sequence[Found], programs: Sequence[Found]) -> str:
    """What was found in place of an exercise."""
    files = [each.shown for each in found if each.file]
    notebooks = [shown for shown in files if shown.suffix.lower() == ".ipynb"]
    if programs:
        return f"{named_briefly([each.shown for each in programs])} defines nothing that a lesson asks for"
    if notebooks:
        return f"{named_briefly(notebooks)} is a notebook; what is graded is exercise.py"
    if files:
        return f"no exercise.py, only {named_briefly(files)}"
    return "nothing handed in"
