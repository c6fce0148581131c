"""What notebooks note and print, and that what only does so stays out of their cells."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from minidist.classroom.watch import mix, print_losses, watch

LESSONS = sorted(Path(__file__).parents[2].glob("lessons/*/"))
TIDY = [lesson for lesson in LESSONS if lesson.name[:2] in {"06", "07", "08", "09", "10"}]


class Engine:
    direction = "forward"

    def gather(self, flat, *more):
        return flat, *more


def test_a_watched_engine_notes_after_each_call():
    watched = watch(Engine, ("gather",), lambda engine, flat: (engine.direction, flat))
    engine = watched()
    assert engine.gather("head", 1) == ("head", 1)
    assert engine.moments == [("forward", "head")]
    assert watched.__name__ == "WatchedEngine"


def test_a_mix_has_the_methods_that_are_asked_for(monkeypatch):
    def gather(self, flat):
        return "mine"

    exercise = SimpleNamespace(Engine=type("Engine", (), {"gather": gather, "other": None}))
    monkeypatch.setitem(__import__("sys").modules, "exercise", exercise)
    assert mix(Engine, [])().gather("head") == ("head",)
    assert mix(Engine, ["gather"])().gather("head") == "mine"
    assert not hasattr(mix(Engine, ["gather"]), "other")


def test_losses_are_printed_in_columns(capsys):
    print_losses({"serial": [1.0, 0.5, 0.25], "on ranks": [1.0, 0.5, 0.25]}, every=2, digits=2)
    assert capsys.readouterr().out == "serial    1.00 0.25\non ranks  1.00 0.25\n"


@pytest.mark.parametrize("lesson", TIDY, ids=lambda lesson: lesson.name)
def test_cells_show_the_algorithm_alone(lesson):
    cells = json.loads((lesson / "lesson.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]).splitlines() for cell in cells if cell["cell_type"] == "code"]
    assert max(map(len, code)) <= 25
    lines = [line.strip() for cell in code for line in cell]
    assert sum(bool(line) and not line.startswith(("#", "%")) for line in lines) <= 220
    assert not re.search(r"#[0-9a-fA-F]{6}", (lesson / "pictures.py").read_text())
