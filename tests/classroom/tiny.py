"""Lessons of two parts, for all that does not depend on the lesson."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LESSON = {
    "exercise.py": "def double(comm, x):\n    raise NotImplementedError\n",
    "on_ranks.py": """
from minidist.classroom.grading.ranks import returned

def call(comm, exercise, x):
    return returned(exercise.double(comm, x))
""",
    "test_exercise.py": """
import numpy as np
import pytest
from minidist.classroom.grading.submission import Case, lose

@pytest.mark.points(2, "doubles")
def test_doubles(submission):
    [[outcome]] = submission.run("call", [Case(1, "1 rank", [np.array([1.0])])])
    if list(outcome.value) != [2.0]:
        lose(f"1 becomes {outcome.value[0]:g}")

@pytest.mark.points(0.5, "negative numbers too")
def test_negative(submission):
    [[outcome]] = submission.run("call", [Case(1, "1 rank", [np.array([-1.0])])])
    if list(outcome.value) != [-2.0]:
        lose(f"-1 becomes {outcome.value[0]:g}")
""",
}
HIDDEN = """
import os
import numpy as np
import pytest
from minidist.classroom.grading.submission import Case, lose

@pytest.mark.points(3, "large numbers")
def test_large(submission):
    [[outcome]] = submission.run("call", [Case(1, "1 rank", [np.array([1e6])])])
    if outcome.value[0] != 2e6:
        lose("a large number is not doubled")
"""
RIGHT = "def double(comm, x):\n    return 2 * x\n"
HALF = "def double(comm, x):\n    return abs(2 * x)\n"
TRIPLE = "def triple(comm, x):\n    return 3 * x\n"


def make_lessons(folder: Path) -> Path:
    """In folder/lessons: 01_tiny, which asks for `double`, and 02_small for `triple`."""
    for name, asked, factor in (("01_tiny", "double", "2.0"), ("02_small", "triple", "3.0")):
        lesson = folder / "lessons" / name
        lesson.mkdir(parents=True)
        for file, text in LESSON.items():
            (lesson / file).write_text(text.replace("double", asked).replace("2.0", factor))
    return folder


def lay(folder: Path, files: dict[str, str]) -> None:
    """Write files; a name that ends in / is an empty folder."""
    for name, text in files.items():
        place = folder / name
        (place if name.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            place.write_text(text)


def classroom(folder: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minidist.classroom", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **variables}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
