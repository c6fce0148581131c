"""Grade a class: a row for each student in the roster or the folder, a column for each lesson.

Every grade is recorded as soon as it is known, under a fingerprint of the exercise and of all that its grade depends
on. So the same command, after an interrupt or a new submission, grades only what has not been graded before.
"""

import csv
import hashlib
import io
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minidist import UsageError, __version__
from minidist.classroom.course import feedback, handed_in, roster
from minidist.classroom.grading import reports
from minidist.classroom.grading.grade import MACHINE_FAULT, Grade, Part, check_hidden, check_lesson, grade, printable
from minidist.cli.paths import check_apart, check_writable, is_file, is_folder, say_written, write_output
from minidist.system import processes
from minidist.system.files import is_stream, temporary_folder


@dataclass
class Outputs:
    """Where the class's grades go."""

    csv: Path | None
    feedback: Path | None  # a folder of pages

    @property
    def journal(self) -> Path | None:
        """The file that records the grades, a line of JSON each; None if the CSV goes to a stream, or nowhere."""
        return None if self.csv is None or is_stream(str(self.csv)) else self.csv.with_name(f"{self.csv.name}.jsonl")

    def check(self, submissions: Path, people: Path | None) -> None:
        """Raise UsageError for an output that cannot be written, or that the next run would grade as a submission."""
        options = {"--csv": self.csv, "the grades with it": self.journal}
        check_apart(
            {option: str(file) for option, file in options.items() if file},
            {"--roster": str(people)} if people else {},
        )
        for option, file in {**options, "--feedback": self.feedback}.items():
            if file and submissions.resolve() in file.resolve().parents:
                raise UsageError(f"{option} {file} is in the folder of submissions: put it elsewhere")
        for option, file in options.items():
            check_writable(option, str(file) if file else None)
        if self.feedback:
            try:
                self.feedback.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"--feedback {self.feedback} cannot be a folder: {error.strerror}") from None
            check_writable("--feedback", str(self.feedback / "page.html"))


class Journal:
    """The grades so far, by fingerprint."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.grades: dict[str, Grade] = {}
        if file and file.exists():
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, TypeError, KeyError):  # an interrupt may have left half a line
                    made = json.loads(line)
                    parts = [Part(**part) for part in made["grade"].pop("parts")]
                    made["grade"]["submission"] = Path(made["grade"]["submission"])
                    self.grades[made["of"]] = Grade(**made["grade"], parts=parts)

    def add(self, key: str, graded: Grade) -> None:
        self.grades[key] = graded
        if self.file:
            with open(self.file, "a", opener=not_by_a_link) as file:
                file.write("\n" + json.dumps({"of": key, "grade": asdict(graded)}, default=str))


def as_text(cell: str) -> str:
    """A cell that a spreadsheet takes as text, even if it begins like a formula, as a name may."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def not_by_a_link(path: str, flags: int) -> int:
    """Open a file, but not through a link: this program made up the name, and a link there would lead elsewhere."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


class Task(NamedTuple):
    """An exercise to be graded."""

    student: str
    lesson: Path
    exercise: Path


def grade_class(
    submissions: Path,
    lessons: Sequence[Path],
    people: Path | None,
    outputs: Outputs,
    options: dict[str, Any],
    jobs: int = 1,
) -> int:
    """Grade all submissions in a folder or a zip; return the exit status. options: those of `grade`. jobs: how many
    exercises are graded at a time."""
    for lesson in lessons:
        check_lesson(lesson)
    check_hidden(options["hidden"])
    known = roster.read(people) if people else None
    outputs.check(submissions, people)
    journal = Journal(outputs.journal)
    with temporary_folder() as scratch:
        found = handed_in.look(opened(submissions, scratch), scratch)
        handed = roster.by_student(
            [each for each in found if each.shown.parts], known, [lesson.name for lesson in lessons]
        )
        if not handed:
            raise UsageError(f"there are no submissions in {submissions}: neither STUDENT.py nor STUDENT/exercise.py")
        result = Class(handed, lessons, known, outputs)
        if outputs.journal:
            result.write_csv()
        for student in handed:
            result.finish(student)  # names students who have handed in nothing that can be graded
        grade_all(result, result.tasks(lessons), journal, options, jobs)
        again = [task for task in result.tasks(lessons) if result.grades[task.student][task.lesson.name].machine]
        if again:
            print(f"\nOnce more, one at a time, what could not be graded for a fault of this machine: {len(again)}")
            grade_all(result, again, journal, options, jobs=1)
    if not outputs.journal:
        result.write_csv()
    print("\n" + result.summary())
    say_written(points=str(outputs.csv) if outputs.csv else None)
    return MACHINE_FAULT if any(graded.machine for of in result.grades.values() for graded in of.values()) else 0


def grade_all(result: "Class", tasks: Sequence[Task], journal: Journal, options: dict[str, Any], jobs: int) -> None:
    """Grade each task that the journal has no grade for, and record each grade as soon as it is known."""
    keys = {task: fingerprint(task.exercise, task.lesson, options) for task in tasks}
    known = [task for task in tasks if keys[task] in journal.grades]
    for task in known:
        result.take(task, journal.grades[keys[task]])
    anew, begin = [task for task in tasks if task not in set(known)], time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:  # each only waits for a process
        running = {pool.submit(grade, task.lesson, task.exercise, **options): task for task in anew}
        try:
            for done, future in enumerate(as_completed(running), start=1):
                task, graded = running[future], future.result()
                if not graded.machine:
                    journal.add(keys[task], graded)
                left = (time.monotonic() - begin) / done * (len(anew) - done)
                result.take(task, graded, f"{done} of {len(anew)}, {describe_time(left)} left" if left else "")
        except BaseException:  # above all an interrupt: end all tasks, and start no more
            pool.shutdown(wait=False, cancel_futures=True)
            while any(future.running() for future in running):  # one may be about to start its process
                processes.terminate_all()
                time.sleep(0.05)
            raise


def describe_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def opened(submissions: Path, scratch: Path) -> Path:
    """The folder of a class; a zip is unpacked first."""
    if is_folder(submissions):
        os.listdir(submissions)  # raises PermissionError, where a walk would just find nothing
        return submissions
    if submissions.suffix.lower() != ".zip" or not is_file(submissions):
        raise UsageError(f"there is no folder {submissions}")
    folder = scratch / "all"
    folder.mkdir()
    if why := handed_in.unpack(submissions, folder):
        raise UsageError(why)
    return folder


def fingerprint(exercise: Path, lesson: Path, options: dict[str, Any]) -> str:
    """A hash of an exercise and of everything else that its grade depends on."""
    hidden = options["hidden"]
    own = [file for file in sorted(lesson.glob("*.py")) if file.name != "exercise.py"]
    tests = own + (sorted(hidden.glob("*.py")) if hidden else [])
    how = [__version__, lesson.name, *(str(options[name]) for name in ("patience", "wire", "seed"))]
    content = [exercise.read_bytes(), *(file.read_bytes() for file in tests), *(text.encode() for text in how)]
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in content)).hexdigest()


class Class:
    """All students' grades, so far."""

    def __init__(
        self,
        handed: dict[str, list[handed_in.Found]],
        lessons: Sequence[Path],
        known: roster.Roster | None,
        outputs: Outputs,
    ) -> None:
        self.lessons, self.known, self.outputs = [lesson.name for lesson in lessons], known, outputs
        self.sorted = {student: handed_in.sort_out(found, lessons, student) for student, found in handed.items()}
        self.grades: dict[str, dict[str, Grade]] = {
            student: {} for student in handed
        }  # student -> lesson's name -> grade
        self.pages = feedback.names(list(handed))
        self.asked = [name for name in self.lessons if any(name in each.exercises for each in self.sorted.values())]

    def problems(self, student: str) -> list[str]:
        """What to report about a student in addition to points."""
        exercises, problems = self.sorted[student]
        said = [] if not self.known or student in self.known.rows else ["not in the roster"]
        numbered = [name for name, each in exercises.items() if roster.by_number_alone(each, self.known)]
        said += [f"{name} is this student's by its number alone: {exercises[name].shown}" for name in numbered]
        absent = [name for name in self.asked if name not in exercises and not any(name in each for each in problems)]
        said += problems + ([f"no {name}" for name in absent] if exercises else [])
        said += [" ".join(graded.error.split()) for graded in self.grades[student].values() if graded.error]
        return [printable(problem) for problem in said]

    def tasks(self, lessons: Sequence[Path]) -> list[Task]:
        """All exercises that were handed in."""
        return [
            Task(student, lesson, exercise.file)
            for student, (exercises, _) in self.sorted.items()
            for lesson in lessons
            if (exercise := exercises.get(lesson.name)) and exercise.file
        ]

    def take(self, task: Task, graded: Grade, progress: str = "") -> None:
        self.grades[task.student][graded.lesson] = graded
        outcome = graded.error.splitlines()[0] if graded.error else f"{graded.earned:g} of {graded.possible:g}"
        took = f"{graded.seconds:.1f} s"
        print(
            printable(f"{task.student:30} {graded.lesson:25} {outcome:10} {took:>8}  {progress}".rstrip()), flush=True
        )
        if self.outputs.journal:  # a stream gets the table once, at the end
            self.write_csv()
        self.finish(task.student)

    def finish(self, student: str) -> None:
        """Write the student's page; if the student has handed in nothing that can be graded, print that."""
        if not self.sorted[student].exercises:
            print(printable(f"{student:30} {'; '.join(self.problems(student))}"), flush=True)
        if self.outputs.feedback:
            page = self.outputs.feedback / self.pages[student]
            feedback.write(page, student, list(self.grades[student].values()), self.problems(student))

    def write_csv(self) -> None:
        if self.outputs.csv is None:
            return
        header = self.known.header if self.known else ["student"]
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow([*header, *self.lessons, "total", "note"])
        for student, grades in self.grades.items():
            row = self.known.rows.get(student) if self.known else None
            earned = {name: graded.earned for name, graded in grades.items() if not graded.machine}
            points = [f"{earned[name]:g}" if name in earned else "" for name in self.lessons]
            total = f"{sum(earned.values()):g}" if earned else ""
            named = row or [student] + [""] * (len(header) - 1)
            writer.writerow(
                [as_text(printable(cell)) for cell in (*named, *points, total, "; ".join(self.problems(student)))]
            )
        write_output(str(self.outputs.csv), text.getvalue().encode(errors="backslashreplace"))

    def notes(self) -> dict[str, str]:
        """Notes for the instructor, which cost no points: {note: the students that it is about}."""
        students: dict[str, list[str]] = {}
        for student, grades in self.grades.items():
            for note in dict.fromkeys(note for graded in grades.values() for note in graded.notes):
                students.setdefault(note, []).append(student)
        graded = [student for student, grades in self.grades.items() if grades]
        return {note: "all" if of == graded and len(of) > 1 else ", ".join(of) for note, of in students.items()}

    def summary(self) -> str:
        """The class in numbers, and by name what needs the instructor's attention."""
        table = reports.class_table([graded for of in self.grades.values() for graded in of.values()])
        lines = [f"{student}: {'; '.join(said)}" for student in self.grades if (said := self.problems(student))]
        if absent := [name for name in self.lessons if name not in self.asked]:
            lines.append(f"nobody has handed in {', '.join(absent)}")
        lines += [f"note on {names}: {note}" for note, names in self.notes().items()]
        return "\n".join([table, "", *map(printable, lines)]).strip()
