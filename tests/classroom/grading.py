"""Grades without a pytest of their own, for tests that need many: the parts of a lesson, called one after the other."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from classroom.overlay import overlay
from minidist.claims.mutants.patch import read_document
from minidist.classroom.grading.submission import Submission
from minidist.classroom.grading.wires import WIRES, Wire
from minidist.system.files import temporary_folder

ROOT = Path(__file__).parents[2]
LESSONS = {lesson.name[:2]: lesson for lesson in sorted((ROOT / "lessons").glob("[0-9]*"))}
MUTANTS = {file.stem[:2]: file for file in sorted((ROOT / "tests" / "classroom" / "mutants").glob("*.toml"))}


def answer(number: str) -> str:
    """A right answer: the skeleton, filled in as its table of mutants says."""
    about = f'"""A right answer to exercise {number}, written from the skeleton."""\n\n'
    own = read_document(MUTANTS[number])["answer"]["program"]
    return overlay((LESSONS[number] / "exercise.py").read_text(encoding="utf-8"), about + own)


ANSWERS = {number: answer(number) for number in LESSONS}


@dataclass
class Graded:
    """Points by part, and what was said of those that were lost."""

    points: dict[str, float]
    messages: dict[str, str]  # of lost parts
    notes: list[str]

    @property
    def earned(self) -> float:
        return sum(points for part, points in self.points.items() if part not in self.messages)

    @property
    def lost(self) -> set[str]:
        return set(self.messages)


class Grader:
    """A lesson's parts, over one wire, whose processes start when they are first needed."""

    def __init__(self, lesson: Path, wire: str = "router", isolate: bool = True) -> None:
        self.lesson, self.on_ranks = lesson, lesson / "on_ranks.py"
        self.tests = load(lesson / "test_exercise.py")
        self.make_wire = partial(WIRES[wire], self.on_ranks, self.tests.HIDDEN, isolate)

    @cached_property
    def wire(self) -> Wire:
        return self.make_wire()

    def close(self) -> None:
        if "wire" in vars(self):
            self.wire.close()

    def grade(self, program: Path | str, patience: float = 10, seed: int = 7, only: set[str] | None = None) -> Graded:
        """The grade of a file, or of a text; of `only` these parts, if they are named."""
        if isinstance(program, str):
            with temporary_folder() as folder:
                (file := folder / "exercise.py").write_text(program)
                return self.grade(file, patience, seed, only)
        told: Any = (self.tests.ASKED, self.tests.HIDDEN, self.wire)
        submission = Submission(program, self.on_ranks, patience, self.wire.name, seed, *told)
        graded = Graded({}, {}, [])
        for name, test, points in self.parts():
            if only is None or name in only:
                graded.points[name] = points
                submission.begin(f"test_{name}")
                try:
                    test(submission)
                except pytest.fail.Exception as lost:
                    graded.messages[name] = str(lost)
        graded.notes = submission.notes()
        return graded

    def parts(self) -> Iterator[tuple[str, Any, float]]:
        for name, test in vars(self.tests).items():
            for mark in getattr(test, "pytestmark", []):
                if mark.name == "points":
                    yield name.removeprefix("test_"), test, mark.args[0]


@contextmanager
def grader(number: str, **options: Any) -> Iterator[Grader]:
    made = Grader(LESSONS[number], **options)
    try:
        yield made
    finally:
        made.close()


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{file.parent.name}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
