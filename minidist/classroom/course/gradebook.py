"""Grade a class: a row for each student in the roster or the folder, a column for each lesson.

Every grade is recorded as soon as it is known, under a fingerprint of the exercise and of all that its grade depends
on. So the same command, after an interrupt or a new submission, grades only what has not been graded before.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minidist import UsageError
from minidist.classroom.course import feedback, handed_in, roster, sheets
from minidist.classroom.course.journal import Journal, Key, key_of, together
from minidist.classroom.course.similar import Pair, similar
from minidist.classroom.grading import reports
from minidist.classroom.grading.grade import MACHINE_FAULT, Grade, check_hidden, check_lesson, grade, printable
from minidist.classroom.grading.likeness import Forms
from minidist.cli.paths import check_apart, check_writable, is_file, is_folder, say_written, write_output
from minidist.system import processes
from minidist.system.files import is_stream, temporary_folder


@dataclass
class Outputs:
    """Where the class's grades go."""

    csv: Path | None = None
    feedback: Path | None = None  # a folder of pages
    upload: Path | None = None  # a table that Canvas or Moodle imports

    @property
    def journal(self) -> Path | None:
        """The file that records the grades, a line of JSON each; None if the CSV goes to a stream, or nowhere."""
        return None if self.csv is None or is_stream(str(self.csv)) else self.csv.with_name(f"{self.csv.name}.jsonl")

    def check(self, submissions: Path, people: Path | None) -> None:
        """Raise UsageError for an output that cannot be written, or that the next run would grade as a submission."""
        options = {"--csv": self.csv, "the grades with it": self.journal, "--upload": self.upload}
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
    due: float | None = None,
    only: str | None = None,
) -> int:
    """Grade all submissions in a folder or a zip; return the exit status. `options` are those of `grade`, `jobs` is the
    number of exercises that are graded at a time, and `due` is the deadline. Where a grade is known and only the tests
    have changed, parts with the words `only` in their titles are graded again."""
    for lesson in lessons:
        check_lesson(lesson)
    check_hidden(options["hidden"])
    known = roster.read(people) if people else None
    outputs.check(submissions, people)
    own = sheets.read_own(outputs.csv)
    journal = Journal(outputs.journal)
    with temporary_folder() as scratch:
        found = handed_in.look(opened(submissions, scratch), scratch)
        handed = roster.by_student(
            [each for each in found if each.shown.parts], known, [lesson.name for lesson in lessons]
        )
        if not handed:
            raise UsageError(f"there are no submissions in {submissions}: neither STUDENT.py nor STUDENT/exercise.py")
        for student in own.cells:  # who is in neither, but in the table of points, keeps what stands there
            handed.setdefault(student, [])
        result = Class(handed, lessons, known, outputs, due, own)
        if outputs.upload:
            sheets.check_upload(known, result.asked)
        if outputs.journal:
            result.write_csv()
        for student in handed:
            result.finish(student)  # names students who have handed in nothing that can be graded
        grade_all(result, result.tasks(lessons), journal, options, jobs, only)
        again = [task for task in result.tasks(lessons) if result.grades[task.student][task.lesson.name].machine]
        if again:
            print(f"\nOnce more, one at a time, what could not be graded for a fault of this machine: {len(again)}")
            grade_all(result, again, journal, options, jobs=1, only=only)
    result.compare(lessons)
    result.write_csv()
    result.write_upload()
    print("\n" + result.summary())
    say_written(points=str(outputs.csv) if outputs.csv else None, upload=str(outputs.upload or "") or None)
    return MACHINE_FAULT if any(graded.machine for of in result.grades.values() for graded in of.values()) else 0


def grade_all(
    result: "Class", tasks: Sequence[Task], journal: Journal, options: dict[str, Any], jobs: int, only: str | None
) -> None:
    """Grade each task that the journal has no grade for, and record each grade as soon as it is known."""
    keys = {task: key_of(task.exercise, task.lesson, options) for task in tasks}
    known = [task for task in tasks if keys[task].of in journal.grades]
    for task in known:
        result.take(task, journal.grades[keys[task].of])
    anew, begin = [task for task in tasks if task not in set(known)], time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:  # each only waits for a process
        running = {pool.submit(grade_anew, task, keys[task], journal, options, only): task for task in anew}
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


def grade_anew(task: Task, key: Key, journal: Journal, options: dict[str, Any], only: str | None) -> Grade:
    """Grade a task. Of one that has a grade by other tests, `only` the parts with these words; with its seed, because
    one seed repeats the whole grade."""
    former = journal.former.get(key.work) if only else None
    if former is None or not former.parts:
        return grade(task.lesson, task.exercise, **options)
    again = grade(task.lesson, task.exercise, **{**options, "seed": former.seed}, only=only)
    return again if again.machine or again.error else together(former, again)


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


class Class:
    """All students' grades, so far."""

    def __init__(
        self,
        handed: dict[str, list[handed_in.Found]],
        lessons: Sequence[Path],
        known: roster.Roster | None,
        outputs: Outputs,
        due: float | None = None,
        own: sheets.Own = sheets.Own([], {}),  # noqa: B008  (nothing writes into it)
    ) -> None:
        self.lessons, self.known, self.outputs = [lesson.name for lesson in lessons], known, outputs
        self.sorted = {student: handed_in.sort_out(found, lessons, student) for student, found in handed.items()}
        self.grades: dict[str, dict[str, Grade]] = {
            student: {} for student in handed
        }  # student -> lesson's name -> grade
        self.pages = feedback.names(list(handed))
        self.own = own
        self.lateness = {student: handed_in.late(of.exercises, due) for student, of in self.sorted.items()}
        self.alike: dict[str, list[Pair]] = {}  # lesson's name -> students whose hand-ins are alike
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

    def late(self, student: str) -> list[str]:
        return [f"{name}: {said}" for name, said in self.lateness[student].items()]

    def notes_on(self, student: str) -> list[str]:
        """What the instructor should know of a student, and the student not from us."""
        said = []
        for name, pair in ((name, pair) for name, of in self.alike.items() for pair in of if student in pair[:2]):
            other = pair.other if pair.one == student else pair.one
            said.append(f"{name} is like {other}'s: {pair.shared} of {pair.every} statements that few others have")
        if self.manual(student) is None:
            said.append(f"manual points are no number: {self.own.of(student, sheets.MANUAL)!r}")
        return [printable(note) for note in said]

    def manual(self, student: str) -> float | None:
        """Points that the instructor has given in points.csv; None if there stands something else."""
        try:
            return self.own.points(student)
        except ValueError:
            return None

    def compare(self, lessons: Sequence[Path]) -> None:
        """Look for students whose hand-ins are alike."""
        for lesson in lessons:
            of = {
                student: graded[lesson.name].forms for student, graded in self.grades.items() if lesson.name in graded
            }
            forms = {student: Forms({(form, weight): n for form, weight, n in each}) for student, each in of.items()}
            self.alike[lesson.name] = similar(forms, lesson / "exercise.py")

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
        late = ["late"] if graded.lesson in self.lateness[task.student] else []
        line = f"{task.student:30} {graded.lesson:25} {outcome:10} {took:>8}  {', '.join([*late, progress])}"
        print(printable(line.rstrip(" ,")), flush=True)
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

    def earned(self, student: str) -> dict[str, float]:
        return {name: graded.earned for name, graded in self.grades[student].items() if not graded.machine}

    def write_csv(self) -> None:
        if self.outputs.csv is None:
            return
        header, own = self.known.header if self.known else ["student"], [sheets.REMARK, *self.own.more]
        rows = [[*header, *self.lessons, sheets.MANUAL, "total", "late", "note", *own]]
        for student in self.grades:
            row = self.known.rows.get(student) if self.known else None
            earned, manual = self.earned(student), self.own.of(student, sheets.MANUAL)
            points = [f"{earned[name]:g}" if name in earned else "" for name in self.lessons]
            total = f"{sum(earned.values()) + (self.manual(student) or 0):g}" if earned or manual else ""
            named = row or [student] + [""] * (len(header) - 1)
            notes = "; ".join(self.problems(student) + self.notes_on(student))
            said = ["; ".join(self.late(student)), notes, *(self.own.of(student, column) for column in own)]
            rows.append([sheets.as_text(cell) for cell in (*named, *points, manual, total, *said)])
        write_output(str(self.outputs.csv), sheets.table(rows))

    def write_upload(self) -> None:
        """What Canvas or Moodle imports. Manual points belong to the lesson, if there is only one."""
        if self.outputs.upload is None or self.known is None:
            return
        points = {student: self.earned(student) for student in self.grades}
        columns = list(self.asked)
        given = {student: self.manual(student) for student in self.own.cells if self.manual(student)}
        for student, manual in given.items():
            column = self.asked[0] if len(self.asked) == 1 else sheets.MANUAL
            points[student][column] = points[student].get(column, 0.0) + (manual or 0.0)
        columns += [sheets.MANUAL] if given and len(self.asked) > 1 else []
        graded = [of for grades in self.grades.values() for of in grades.values()]
        possible = {name: max((of.possible for of in graded if of.lesson == name), default=0.0) for name in columns}
        write_output(str(self.outputs.upload), sheets.upload(self.known, columns, points, possible))

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
        lines += [f"{student}: late, {'; '.join(said)}" for student in self.grades if (said := self.late(student))]
        lines += [f"{student}: {'; '.join(said)}" for student in self.grades if (said := self.notes_on(student))]
        if absent := [name for name in self.lessons if name not in self.asked]:
            lines.append(f"nobody has handed in {', '.join(absent)}")
        lines += [f"note on {names}: {note}" for note, names in self.notes().items()]
        return "\n".join([table, "", *map(printable, lines)]).strip()
