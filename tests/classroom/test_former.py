"""What a student of the version before has in work/ still works: it earns its points, and its notebooks still run."""

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from classroom.former import KEPT, WHOLE, kept, kept_uses, uses
from classroom.grading import LESSONS, grader
from classroom.tiny import lay
from minidist.classroom import work
from minidist.system import former
from sampling import shard_of_this_run

ROOT = Path(__file__).parents[2]
OLD = [number for number in LESSONS if (KEPT / f"{number}.toml").exists()]  # the version before had these
GRADED = [pytest.param(number, marks=[pytest.mark.slow] * (number != "04")) for number in OLD]
FOLDERS = [
    pytest.param(number, marks=[pytest.mark.slow] * (number not in shard_of_this_run(WHOLE, 3))) for number in WHOLE
]
RUN = [pytest.param(number, marks=[pytest.mark.slow] * (number != "05")) for number in WHOLE]


def test_every_name_that_copies_use_is_there() -> None:
    every = {(module, name) for module, names in kept_uses().items() for name in names}
    assert len(every) >= 150
    for module, name in sorted(every):
        try:
            pkgutil.resolve_name(f"{module}.{name}")
        except (ImportError, AttributeError) as error:
            pytest.fail(f"copies in work/ use {name} of {module}: {error}. An alias stays for one release.")


def test_the_copies_use_no_name_that_is_not_kept() -> None:
    every = {(module, name) for module, names in kept_uses().items() for name in names}
    for number in OLD:
        assert uses(kept(number)) <= every
    assert all({"lesson.ipynb", "given.py", "pictures.py"} <= kept(number).keys() for number in WHOLE)


@pytest.mark.parametrize("number", GRADED)
def test_a_former_exercise_earns_all_its_points(number: str, tmp_path: Path) -> None:
    lay(tmp_path, {"exercise.py": kept(number)["exercise.py"]})
    with grader(number) as grades:
        assert grades.grade(tmp_path / "exercise.py").messages == {}


@pytest.mark.parametrize("number", FOLDERS)
def test_a_former_work_folder_is_graded(number: str, tmp_path: Path) -> None:
    """By the command, next to today's lesson. `make lessons` leaves the student's files as they are."""
    name = LESSONS[number].name
    lay(tmp_path / "work" / name, kept(number))
    shutil.copytree(LESSONS[number], tmp_path / "lessons" / name)
    command = [sys.executable, "-m", "minidist.classroom", "grade", f"lessons/{name}"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(rf"work/{name}", ran.stdout)
    assert "20 of 20" in ran.stdout


@pytest.mark.parametrize("number", RUN)
def test_a_former_notebook_still_runs(number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a clean kernel, with the student's exercise.py and the given.py of then, next to today's tests."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    shutil.copytree(LESSONS[number], tmp_path / "lessons" / LESSONS[number].name)
    copy = tmp_path / "work" / LESSONS[number].name
    lay(copy, kept(number))
    monkeypatch.chdir(tmp_path)
    work.copy_lessons(Path("lessons"))
    assert kept(number).items() <= {file.name: file.read_text(encoding="utf-8") for file in copy.iterdir()}.items()
    notebook = nbformat.read(copy / "lesson.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": copy}}).execute()
    said = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output]
    assert said[-1] == "All claims hold.\n"
    checked = [line for text in said for line in text.splitlines() if line[:2] in ("✓ ", "✗ ")]
    assert checked
    assert all(line.startswith("✓ ") for line in checked), checked


def test_modules_of_the_former_version_are_the_new_ones() -> None:
    for name, now in former.MODULES.items():
        assert importlib.import_module(name) is importlib.import_module(now)
