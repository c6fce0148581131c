"""What takes minutes, for a machine on which nothing else runs (two cores are enough):

python -m pytest -m slow -s tests/classroom/test_busy.py -k load        # right answers while eight processes compute
python -m pytest -m slow -s tests/classroom/test_busy.py -k hundred     # a class of two hundred: how long it took
"""

import csv
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from classroom.grading import ANSWERS, LESSONS, grader
from classroom.mistakes import BASES, MUTANTS, SUBMISSIONS
from classroom.test_tricks import HOSTILE, TRICKS
from classroom.tiny import classroom, lay

LOAD, RUNS = 8, 20
CLASS = 200
RING = "04"


@contextmanager
def busy(number: int) -> Iterator[None]:
    """That many processes that do nothing but compute."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
        assert all(process.poll() is None for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_right_answers_earn_everything_at_a_load_of_eight() -> None:
    """In twenty runs: each lesson's answer, and five of them once more, with other inputs and another order."""
    with busy(LOAD):
        for run, number in enumerate(itertools.islice(itertools.cycle(LESSONS), RUNS)):
            with grader(number) as made:
                graded = made.grade(ANSWERS[number], seed=run)
            assert (graded.messages, graded.earned) == ({}, 20), f"lesson {number}, seed {run}"


def a_class() -> dict[str, tuple[str, float, float]]:
    """For each student a program, and the least and the most points that it may earn. A quarter each is right, has one
    mistake, is no exercise or hardly one, and means harm. No two are the same."""
    right = [ANSWERS[RING], *(base.text() for base in BASES[RING].values())]
    wrong = [mutant.text() for mutant in MUTANTS[RING].values()]
    hardly = ["", (LESSONS[RING] / "exercise.py").read_text(), SUBMISSIONS[RING]["no_python"].text()]
    harmful = [text for text, _ in HOSTILE.values()]
    harmful += [
        trick.text() for trick in TRICKS.values() if trick.lesson == RING and not trick.earns and not trick.loses
    ]
    kinds = [(right, 20, 20), (wrong, 10, 19), (hardly, 0, 0), (harmful, 0, 5)]
    quarters = [[(text, *earned) for text, _ in zip(itertools.cycle(of), range(CLASS // 4))] for of, *earned in kinds]
    return {f"student{number:03}": each for number, each in enumerate(itertools.chain(*zip(*quarters, strict=True)))}


@pytest.mark.slow
def test_a_class_of_two_hundred_has_its_points(tmp_path: Path) -> None:
    students = a_class()
    for student, (text, *_) in students.items():
        lay(tmp_path, {f"class/{student}/": ""})
        program = f"{text}\n# {student}\n" if text else ""
        (tmp_path / "class" / student / "exercise.py").write_bytes(program.encode(errors="surrogateescape"))
    lay(tmp_path, {"roster.csv": "name\n" + "".join(f"{student}\n" for student in students)})
    arguments = ["--lesson", LESSONS[RING], "--roster", "roster.csv", "--csv", "points.csv", "--feedback", "pages"]
    begin = time.monotonic()
    run = classroom(tmp_path, "class", "class", *arguments, "--jobs", 2, "--seed", 7)
    print(f"{len(students)} submissions in {time.monotonic() - begin:.0f} s")
    assert "Traceback" not in run.stdout + run.stderr
    with (tmp_path / "points.csv").open(newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert rows.keys() == students.keys()
    for student, (_, least, most) in students.items():
        assert least <= float(rows[student]["total"] or 0) <= most, (student, rows[student])
