"""The notebooks, executed from a clean kernel: their assertions hold, and what comes out is what is committed."""

import os
import shutil
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
LESSONS = sorted(file.parent for file in ROOT.glob("lessons/*/lesson.ipynb"))


def printed(notebook):
    """(cell, text) of everything that cells print, return or fail with; of a picture that there is one."""
    return [
        (number, output.get("text") or "\n".join(output.get("traceback", [])) or sorted(output.get("data", {})))
        for number, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", [])
    ]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_a_notebook_executes_and_gives_what_is_committed(lesson, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    folder = shutil.copytree(lesson, tmp_path / lesson.name)
    committed = nbformat.read(lesson / "lesson.ipynb", as_version=4)
    notebook = nbformat.read(folder / "lesson.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": folder}}, coalesce_streams=True
    ).execute()
    assert printed(notebook) == printed(committed)
    last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    assert "assert " in last.source


def test_every_lesson_is_complete():
    assert [lesson.name for lesson in LESSONS] == ["04_ring_all_reduce", "09_zero_3"]
    for lesson in LESSONS:
        for name in ("exercise.py", "test_exercise.py", "on_ranks.py"):
            assert (lesson / name).is_file(), f"{lesson.name} has no {name}"
