"""Grade exercises.

python -m minidist.classroom grade lessons/04_ring_all_reduce
python -m minidist.classroom grade lessons/04_ring_all_reduce --submission their.py --gradescope results/
python -m minidist.classroom class submissions/ --csv points.csv
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from minidist import UsageError
from minidist.claims.files import check_apart, check_writable, write_json, write_output
from minidist.classroom import reports
from minidist.classroom.grade import Grade, check_lesson, exercise_of, find_submissions, grade, lesson_of, lessons_in
from minidist.cli.options import Parser, at_least, in_one_process, within
from minidist.mpi.launch import find_mpiexec

LESSONS = Path("lessons")
MACHINE_FAULT = 3  # exit status: something could not be graded, through no fault of its own


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser("classroom", __doc__ or "")
    parser.set_defaults(command=None)
    # Subcommands would be parsers of argparse's own kind, which print and exit; two parsers and a word do as well.
    if arguments[:1] == ["grade"]:
        parser.prog += " grade"
        parser.add_argument("lessons", nargs="*", type=Path, metavar="LESSON", help="folders; all in lessons/ if none")
        parser.add_argument(
            "--submission", type=Path, metavar="FILE", help="grade this file, not exercise.py in work/LESSON or LESSON"
        )
        parser.add_argument("--gradescope", type=Path, metavar="DIR", help="write DIR/results.json for Gradescope")
        parser.add_argument("--junit", metavar="FILE", help="write the grade as JUnit XML")
    elif arguments[:1] == ["class"]:
        parser.prog += " class"
        parser.add_argument("submissions", type=Path, help="a folder with STUDENT.py or STUDENT/exercise.py")
        parser.add_argument(
            "--lesson", type=Path, metavar="LESSON", help="of all; else the one whose names they define"
        )
        parser.add_argument("--csv", metavar="FILE", help="write a row for each student")
    else:
        parser.usage = "%(prog)s {grade,class} [options]"
        parser.add_argument("command", choices=("grade", "class"), help="one exercise, or a folder of submissions")
    parser.add_argument("--hidden", type=Path, metavar="FOLDER", help="an instructor's folder with more test_*.py")
    parser.add_argument(
        "--patience", type=within(1, 3600), metavar="SECONDS", help="of processor time, for each rank of a part"
    )
    parser.add_argument("--wire", choices=("router", "mpi"), default="router", help="what ranks send over")
    parser.add_argument("--seed", type=at_least(0), metavar="N", help="grade as before, inputs and order and all")
    options = parser.parse_args(arguments[1:] if arguments[:1] in (["grade"], ["class"]) else arguments)
    options.command = arguments[0]
    return options


def grade_lessons(options: argparse.Namespace) -> int:
    """Print the grade of each lesson; 0 if all points were earned, 1 if not."""
    lessons = options.lessons or lessons_in(LESSONS)
    if not lessons:
        raise UsageError(f"there are no lessons in {LESSONS}/: name a lesson's folder")
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
        write_json(str(options.gradescope / "results.json"), reports.gradescope(grades[0]))
    if options.junit:
        write_output(options.junit, reports.junit(grades).encode())
    if any(graded.machine for graded in grades):
        return MACHINE_FAULT
    return 0 if all(graded.earned == graded.possible and not graded.error for graded in grades) else 1


def grade_class(options: argparse.Namespace) -> int:
    """Grade every submission, whatever the others do; print a line for each, and the class in figures."""
    found = find_submissions(options.submissions)
    lessons = [options.lesson] if options.lesson else lessons_in(LESSONS)
    for lesson in lessons:
        check_lesson(lesson)
    check_apart({"--csv": options.csv}, {f"{student}'s submission": str(file) for student, file in found})
    check_writable("--csv", options.csv)
    rows = []
    for student, file in found:
        lesson = options.lesson or lesson_of(file, lessons)
        if lesson is None:
            graded = Grade("", file, error="it defines nothing that a lesson asks for")
        else:
            graded = grade(lesson, file, options.hidden, options.patience, options.wire, options.seed)
        rows.append((student, graded))
        outcome = graded.error.splitlines()[0] if graded.error else f"{graded.earned:g} of {graded.possible:g}"
        print(f"{student:30} {graded.lesson:25} {outcome}", flush=True)
    if options.csv:
        write_output(options.csv, reports.as_csv(rows).encode(errors="backslashreplace"))
    print("\n" + reports.class_table([graded for _, graded in rows]))
    return MACHINE_FAULT if any(graded.machine for _, graded in rows) else 0


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if find_spec("pytest") is None:
        raise UsageError("grading needs pytest: pip install '.[mpich,lessons]'")
    if options.wire == "mpi":
        find_mpiexec()  # or say now that there is none
    return grade_lessons(options) if options.command == "grade" else grade_class(options)


if __name__ == "__main__":
    sys.exit(in_one_process(lambda: main(sys.argv[1:])))
