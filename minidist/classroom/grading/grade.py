"""Grade a submission, in a pytest of its own.

Whatever a submission does, every part gets a line: all parts are recorded before the first one runs. If the grading
process itself is ended, the parts without an outcome earn nothing and say so.
"""

import codecs
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from minidist import UsageError
from minidist.cli.paths import check_readable, is_file, is_folder
from minidist.system import processes

WORK = "work"  # where students' copies of the lessons are
LONGEST = 1800.0  # seconds for all parts of a submission
NO_TESTS = "ended with status 5"  # pytest's
READ = 10_000  # characters of a message: more than a student reads


@dataclass
class Part:
    """One graded test."""

    name: str  # pytest's id
    title: str
    points: float
    earned: float = 0
    message: str = ""  # if the part was lost: what to look at next
    hidden: bool = False  # from an instructor's folder
    seconds: float = 0
    done: bool = False
    machine: bool = False  # it could not be graded, for a fault of the machine, which `message` names


MACHINE_FAULT = 3  # exit status: something could not be graded, through no fault of its own


@dataclass
class Grade:
    """What a submission earned."""

    lesson: str
    submission: Path
    parts: list[Part] = field(default_factory=list)
    error: str = ""  # why it could not be graded
    machine: bool = False  # through no fault of the submission: there is no grade, not even 0 points
    seconds: float = 0  # how long that took
    seed: int | None = None  # repeats the same grade
    notes: list[str] = field(default_factory=list)  # for the instructor: they change no points
    used: float = 0  # seconds of processor time and of sleep, with what the grader needs to hear the ranks
    limit: float = 0  # how many a submission may use
    forms: list[tuple[str, int, int]] = field(default_factory=list)  # of its statements, with weights, and how often

    @property
    def earned(self) -> float:
        return sum(part.earned for part in self.parts)

    @property
    def possible(self) -> float:
        return sum(part.points for part in self.parts)


def grade(
    lesson: Path,
    submission: Path | None = None,
    hidden: Path | None = None,
    patience: float | None = None,
    wire: str = "router",
    seed: int | None = None,
    only: str | None = None,
) -> Grade:
    """Grade a file, or the student's exercise.py. `hidden` is a folder with more tests, and `patience` the seconds of
    processor time that a rank may use in a part. `wire` is "router" or "mpi"; a `seed` repeats a grade. With `only`,
    parts with these words in their titles are graded."""
    check_lesson(lesson)
    submission = submission or exercise_of(lesson)
    if not is_file(submission):
        raise UsageError(f"there is no file {submission}")
    if submission.suffix.lower() != ".py":
        raise UsageError(f"{submission} is no Python file: name the student's .py file")
    check_readable("the submission", str(submission))
    check_hidden(hidden)
    begin = time.monotonic()
    with tempfile.TemporaryFile() as written:  # without a name, so that no other process can write to it
        plugins = ("-p", "minidist.classroom.grading.pytest_plugin", "-p", "no:cacheprovider")
        command = [sys.executable, "-P", "-m", "pytest", *plugins]  # no module in the current folder is found
        command += ["-c", "/dev/null", f"--rootdir={lesson}", "--noconftest", "--import-mode=importlib", "-q"]
        command += [f"--submission={submission.resolve()}", f"--lesson={lesson.resolve()}"]
        command += [f"--parts={written.fileno()}", f"--wire={wire}"]
        command += [f"--patience={patience}"] if patience else []
        command += [f"--seed={seed}"] if seed is not None else []
        command += [f"--only={only}"] if only else []
        command += [str(lesson / "test_exercise.py"), *map(str, sorted(hidden.glob("test_*.py")) if hidden else [])]
        try:
            run = processes.run(
                command,
                LONGEST,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[written.fileno()],
                env={**os.environ, **own_path(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # which saves a second
            )
            ending = f"ended with status {run.returncode}"
            output = run.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired:
            ending, output = f"was ended after {LONGEST:g} s", ""
        written.seek(0)
        *whole, cut = written.read().decode().split("\n")
        lines = [json.loads(line) for line in whole]
    graded = Grade(lesson.name, submission, seconds=time.monotonic() - begin)
    parts = {line["name"]: Part(**{**line, "message": printable(line["message"])}) for line in lines if "name" in line}
    for line in lines:
        if "seed" in line:
            graded = replace(graded, **line)
    for part in parts.values():
        if not part.done:
            part.earned, part.message = 0, f"not graded: the process that grades {ending}"
    graded.parts = list(parts.values())
    if not parts and only and ending == NO_TESTS:
        raise UsageError(f"no part of {lesson.name} has {only!r} in its title; --lesson names the one that has")
    if not parts:
        graded.error = f"there was nothing to grade: pytest {ending}\n{printable(output.strip())}"
        graded.machine = True  # nothing of the student's has run
    faults = [part.message for part in graded.parts if part.machine]
    if cut:
        faults.append(f"the points cannot be written to {tempfile.gettempdir()}: is its disk full, or ulimit -f low?")
    if faults:
        graded.machine, graded.error = True, f"not graded, for a fault of this machine: {faults[0]}"
    return graded


def own_path() -> dict[str, str]:
    """Where a process that does not look around finds this package, if it is not installed; an empty entry is here."""
    folder = Path(__file__).parents[3]
    own = [] if folder.name in ("site-packages", "dist-packages") else [str(folder)]
    return {"PYTHONPATH": os.pathsep.join([*own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])}


def printable(text: str) -> str:
    """A submission's text, safe for any terminal or page: control characters are escaped as in a Python string, so that
    they cannot overwrite a table of points. The middle of a very long text is left out."""
    if len(text) > READ:
        half = READ // 2
        text = f"{text[:half]}\n[{len(text) - READ:,} characters more]\n{text[-half:]}"
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode() for char in text
    )


# ---- lessons ---------------------------------------------------------------------------------------------------------


def check_hidden(folder: Path | None) -> None:
    """Raise UsageError unless there are tests in an instructor's folder."""
    if folder is None:
        return
    tests = [file for file in folder.iterdir() if file.match("test_*.py")] if is_folder(folder) else []
    if not tests:
        raise UsageError(f"there is no test_*.py in {folder}")
    for file in tests:
        check_readable("--hidden", str(file))


def check_lesson(lesson: Path) -> None:
    """Raise UsageError unless the folder is a lesson."""
    for name in ("exercise.py", "test_exercise.py", "on_ranks.py"):
        if not is_file(lesson / name):
            raise UsageError(f"{lesson} is no lesson: it has no {name}")
        check_readable("the lesson's", str(lesson / name))


def exercise_of(lesson: Path) -> Path:
    """The student's copy in work/, next to lessons/, if it is there; else the skeleton itself."""
    folder = lesson.resolve()
    copy = folder.parents[1] / WORK / folder.name / "exercise.py"
    if folder.parent.name != "lessons" or not copy.is_file():
        return lesson / "exercise.py"
    return copy if lesson.is_absolute() else Path(os.path.relpath(copy))


def lessons_in(folder: Path) -> list[Path]:
    """All lessons in a folder, in order of their names."""
    return sorted(file.parent for file in folder.glob("*/on_ranks.py") if (file.parent / "exercise.py").is_file())


def lesson_of(submission: Path, lessons: Sequence[Path]) -> Path | None:
    """The lesson whose exercise defines most of the names that the submission defines; None if none shares any.

    Only the text is read, because a submission need not even be Python.
    """
    shared = {lesson: len(_defined(lesson / "exercise.py") & _defined(submission)) for lesson in lessons}
    best = max(lessons, key=lambda lesson: shared[lesson], default=None)
    return best if best is not None and shared[best] else None


def read_program(file: Path) -> bytes:
    """A program's bytes. UTF-16, which Windows' editors call "Unicode", is converted to UTF-8."""
    content = file.read_bytes()
    if not content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content
    try:
        return content.decode("utf-16").encode()
    except UnicodeError:  # then Python will say that it cannot be read
        return content


def _defined(file: Path) -> set[str]:
    return set(re.findall(r"^(?:def|class) (\w+)", read_program(file).decode(errors="replace"), re.MULTILINE))
