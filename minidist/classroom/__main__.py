"""Grade exercises.

python -m minidist.classroom grade lessons/04_ring_all_reduce
python -m minidist.classroom grade lessons/04_ring_all_reduce --submission their.py --gradescope results/
python -m minidist.classroom class submissions/ --roster students.csv --csv points.csv --feedback pages/
python -m minidist.classroom release OUT
"""

import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minidist import UsageError, how_to_enter_clone, how_to_install
from minidist.classroom.course import gradebook as course
from minidist.classroom.course.handed_in import deadline
from minidist.classroom.course.release import release
from minidist.classroom.grading import copies, reports
from minidist.classroom.grading.grade import MACHINE_FAULT, Grade, check_lesson, exercise_of, grade, lessons_in
from minidist.cli.fields import choice, operand, option, output, part, read, whole
from minidist.cli.options import Parser, in_one_process, pathlib_path, some_text, within
from minidist.cli.paths import as_json, check_apart, check_writable, say_written, write_inside, write_output
from minidist.system import unix

LESSONS = Path("lessons")


@dataclass(frozen=True, kw_only=True)
class HowOptions:
    """How exercises are graded."""

    hidden: Path | None = option(None, pathlib_path, "FOLDER", "an instructor's folder with more test_*.py")
    patience: float | None = option(None, within(1, 3600), "SECONDS", "of processor time, for each rank of a part")
    wire: str = choice(("router", "mpi"), "router", "what ranks send over", None)
    seed: int | None = whole("N", "grade as before, inputs and order and all", least=0)


@dataclass(frozen=True, kw_only=True)
class GradeOptions:
    lessons: tuple[Path, ...] = operand("LESSON", "folders; all in lessons/ if none", pathlib_path, nargs="*")
    submission: Path | None = option(
        None, pathlib_path, "FILE", "grade this file, not exercise.py in work/LESSON or LESSON"
    )
    gradescope: Path | None = option(None, pathlib_path, "DIR", "write DIR/results.json for Gradescope")
    junit: str | None = output("write the grade as JUnit XML")
    how: HowOptions = part(HowOptions)


@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    submissions: Path = operand("FOLDER", "a folder as a browser or an LMS leaves it", pathlib_path)
    lesson: Path | None = option(None, pathlib_path, "LESSON", "this one alone; else all in lessons/")
    roster: Path | None = option(None, pathlib_path, "FILE", "CSV with a header: each student's name, and others")
    csv: Path | None = option(None, pathlib_path, "FILE", "write a row for each student; goes on where it was")
    jobs: int = whole("N", "how many exercises are graded at a time; default: 1", 1)
    feedback: Path | None = option(None, pathlib_path, "FOLDER", "write a page for each student")
    upload: Path | None = option(None, pathlib_path, "FILE", "write what Canvas or Moodle imports, as --roster has it")
    due: float | None = option(None, deadline, "WHEN", "mark what was handed in later: 2026-12-01, or ...T18:00")
    only: str | None = option(None, some_text, "WORDS", "once a test was mended: grade again only parts of such titles")
    how: HowOptions = part(HowOptions)

    @property
    def lessons(self) -> tuple[Path, ...]:
        return (self.lesson,) if self.lesson else ()


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions:
    out: Path = operand("OUT", "a new folder: student/, autograder/LESSON.zip", pathlib_path)
    hidden: Path | None = option(None, pathlib_path, "FOLDER", "an instructor's folder with more test_*.py")
    seed: int | None = whole("N", "autograders draw the same inputs for all students", least=0)

    lessons = ()


COMMANDS = {"grade": GradeOptions, "class": ClassOptions, "release": ReleaseOptions}


@dataclass(frozen=True, kw_only=True)
class NoCommand:
    command: str = operand(None, "one exercise, a folder of submissions, what to hand out", choices=COMMANDS)


def parse(arguments: list[str]) -> Any:
    """The options of a command. Subcommands would be parsers of argparse's own kind, which print and exit; a parser and
    a word do the same."""
    made = Parser("classroom", __doc__ or "")
    if not arguments or arguments[0] not in COMMANDS:
        made.usage = "%(prog)s {grade,class,release} [options]"
        return read(made, NoCommand, arguments)  # which refuses them
    made.prog += f" {arguments[0]}"
    return read(made, COMMANDS[arguments[0]], arguments[1:])


def grade_lessons(options: GradeOptions, lessons: list[Path]) -> int:
    """Print the grade of each lesson; 0 if all points were earned, 1 if not."""
    if len(lessons) > 1 and (options.submission or options.gradescope):
        raise UsageError("--submission and --gradescope are for one lesson: name its folder")
    for lesson in lessons:
        check_lesson(lesson)
    graded_files = [options.submission] if options.submission else [exercise_of(lesson) for lesson in lessons]
    check_apart({"--junit": options.junit}, {f"the exercise {file}": str(file) for file in graded_files})
    check_writable("--junit", options.junit)
    if options.gradescope:
        try:
            options.gradescope.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--gradescope {options.gradescope} cannot be a folder: {error.strerror}") from None
        check_writable("--gradescope", str(options.gradescope / "results.json"))
    grades, how = list[Grade](), options.how
    for lesson in lessons:
        graded = grade(lesson, options.submission, how.hidden, how.patience, how.wire, how.seed)
        print(("\n" if grades else "") + reports.table(graded), flush=True)
        grades.append(graded)
    if options.gradescope and not grades[0].machine:  # without a file, Gradescope says that the autograder failed
        write_inside(str(options.gradescope), "results.json", as_json(reports.gradescope(grades[0])))
    if options.junit:
        write_output(options.junit, reports.junit(grades).encode())
        say_written(JUnit=options.junit)
    if any(graded.machine for graded in grades):
        return MACHINE_FAULT
    return 0 if all(graded.earned == graded.possible and not graded.error for graded in grades) else 1


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    lessons = [*options.lessons] or lessons_in(LESSONS)
    if not lessons:
        raise UsageError(f"there are no lessons in {LESSONS}/: {how_to_enter_clone()}")
    if isinstance(options, ReleaseOptions):
        for written in release(options.out, lessons, options.hidden, options.seed):
            print(written)
        return 0
    unix.check()
    if find_spec("pytest") is None:
        raise UsageError(f"grading needs pytest: {how_to_install('mpich', 'lessons')}")
    if options.how.wire == "mpi":
        from minidist.launch.launcher import find_mpiexec  # imports NumPy, which only the process that grades needs

        find_mpiexec()  # raises now if there is none
    if said := copies.warning():
        print(f"minidist: {said}", file=sys.stderr)
    if isinstance(options, GradeOptions):
        return grade_lessons(options, lessons)
    outputs = course.Outputs(options.csv, options.feedback, options.upload)
    how = asdict(options.how), options.jobs, options.due, options.only
    return course.grade_class(options.submissions, lessons, options.roster, outputs, *how)


if __name__ == "__main__":
    sys.exit(in_one_process(lambda: main(sys.argv[1:])))
