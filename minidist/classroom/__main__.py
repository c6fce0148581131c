"""Grade exercises.

python -m minidist.classroom grade lessons/04_ring_all_reduce
python -m minidist.classroom grade lessons/04_ring_all_reduce --submission their.py --gradescope results/
python -m minidist.classroom class submissions/ --roster students.csv --csv points.csv --feedback pages/
python -m minidist.classroom release OUT
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minidist import UsageError, how_to_enter_clone, how_to_install, unix
from minidist.classroom.course import gradebook as course
from minidist.classroom.course.release import release
from minidist.classroom.grading import reports
from minidist.classroom.grading.grade import MACHINE_FAULT, Grade, check_lesson, exercise_of, grade, lessons_in
from minidist.cli.options import Parser, at_least, in_one_process, pathlib_path, within
from minidist.cli.paths import as_json, check_apart, check_writable, say_written, write_inside, write_output

LESSONS = Path("lessons")
COMMANDS = ("grade", "class", "release")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser("classroom", __doc__ or "")
    # Subcommands would be parsers of argparse's own kind, which print and exit; a parser and a word do the same.
    command = arguments[0] if arguments and arguments[0] in COMMANDS else None
    parser.set_defaults(command=command)
    if command is None:
        parser.usage = "%(prog)s {grade,class,release} [options]"
        parser.add_argument("command", choices=COMMANDS, help="one exercise, a folder of submissions, what to hand out")
        return parser.parse_args(arguments)
    parser.prog += f" {command}"
    add = parser.add_argument

    def path(name: str, metavar: str, words: str, **more: Any) -> None:
        add(name, type=pathlib_path, metavar=metavar, help=words, **more)

    if command == "grade":
        path("lessons", "LESSON", "folders; all in lessons/ if none", nargs="*")
        path("--submission", "FILE", "grade this file, not exercise.py in work/LESSON or LESSON")
        path("--gradescope", "DIR", "write DIR/results.json for Gradescope")
        parser.output("--junit", help="write the grade as JUnit XML")
    elif command == "class":
        path("submissions", "FOLDER", "a folder as a browser or an LMS leaves it")
        path("--lesson", "LESSON", "this one alone; else all in lessons/")
        path("--roster", "FILE", "CSV with a header: each student's name, and others")
        path("--csv", "FILE", "write a row for each student; goes on where it was")
        jobs = "how many exercises are graded at a time; default: 1"
        add("--jobs", type=at_least(1), default=1, metavar="N", help=jobs)
        path("--feedback", "FOLDER", "write a page for each student")
    else:
        path("out", "OUT", "a new folder: student/, autograder/LESSON.zip")
    path("--hidden", "FOLDER", "an instructor's folder with more test_*.py")
    if command != "release":
        patience = "of processor time, for each rank of a part"
        add("--patience", type=within(1, 3600), metavar="SECONDS", help=patience)
        add("--wire", choices=("router", "mpi"), default="router", help="what ranks send over")
        add("--seed", type=at_least(0), metavar="N", help="grade as before, inputs and order and all")
    return parser.parse_args(arguments[1:])


def grade_lessons(options: argparse.Namespace, lessons: list[Path]) -> int:
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
    grades: list[Grade] = []
    for lesson in lessons:
        graded = grade(lesson, options.submission, options.hidden, options.patience, options.wire, options.seed)
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
    named = [options.lesson] if getattr(options, "lesson", None) else getattr(options, "lessons", [])
    lessons = named or lessons_in(LESSONS)
    if not lessons:
        raise UsageError(f"there are no lessons in {LESSONS}/: {how_to_enter_clone()}")
    if options.command == "release":
        for written in release(options.out, lessons, options.hidden):
            print(written)
        return 0
    unix.check()
    if find_spec("pytest") is None:
        raise UsageError(f"grading needs pytest: {how_to_install('mpich', 'lessons')}")
    if options.wire == "mpi":
        from minidist.launch.launcher import find_mpiexec  # imports NumPy, which only the process that grades needs

        find_mpiexec()  # raises now if there is none
    if options.command == "grade":
        return grade_lessons(options, lessons)
    how = {name: getattr(options, name) for name in ("hidden", "patience", "wire", "seed")}
    outputs = course.Outputs(options.csv, options.feedback)
    return course.grade_class(options.submissions, lessons, options.roster, outputs, how, options.jobs)


if __name__ == "__main__":
    sys.exit(in_one_process(lambda: main(sys.argv[1:])))
