"""Mistakes as data: what is written down of a program is put together with what is not."""

import pytest

from classroom.mistakes import BASES, MUTANTS, SUBMISSIONS, Mistake
from classroom.overlay import overlay

EVERY = [mistake for table in (MUTANTS, SUBMISSIONS, BASES) for of in table.values() for mistake in of.values()]

BASE = '''"""Right."""

import os

import numpy as np


def one(x):
    return x + 1


class Two(list):
    size = 2

    def first(self):
        return self[0]

    # the last
    def last(self):
        return self[-1]
'''


@pytest.mark.parametrize(
    ("written", "without", "expected"),
    [
        ("def one(x):\n    return x\n", [], BASE.replace("x + 1", "x")),
        ("class Two(dict):\n    def last(self):\n        pass\n", [], None),
        ("import sys\n\nimport numpy as np\n", ["import os"], BASE.replace("import os", "import sys")),
        ("", ["import os", "Two.last"], BASE.replace("import os\n\n", "").partition("\n    # the last")[0]),
        ("", ["one", "Two"], BASE.partition("\n\ndef one")[0]),
        (
            "def new():\n    pass\n\n\nclass Two(list):\n    size = 2\n",
            [],
            BASE.replace("class", "def new():\n    pass\n\n\nclass"),
        ),
        ("def one(x):\n    return x + 1\n\n\ndef new():\n    pass\n", [], BASE + "\n\ndef new():\n    pass\n"),
    ],
    ids=["replaced", "method", "import", "left out", "left out with its methods", "before", "behind"],
)
def test_an_overlay(written: str, without: list[str], expected: str | None) -> None:
    if expected is None:
        expected = BASE.replace("list", "dict").replace("    # the last\n", "").replace("return self[-1]", "pass")
    assert overlay(BASE, written, without) == expected


@pytest.mark.parametrize(("written", "without"), [("", ["three"]), ("def one():\n    pass\n" * 2, [])])
def test_what_cannot_be_meant(written: str, without: list[str]) -> None:
    with pytest.raises(AssertionError, match=r"there is no \{'three'\}|one stands there twice"):
        overlay(BASE, written, without)


def test_every_mistake_is_another_program() -> None:
    """Each can be put together, and but for what is no Python on purpose each is a program."""
    texts: dict[str, list[str]] = {}
    for mistake in EVERY:
        text = mistake.text()
        texts.setdefault(mistake.lesson, []).append(text)
        if mistake.name != "no_python":
            compile(text, mistake.name, "exec")
    for of_lesson in texts.values():
        assert len(set(of_lesson)) == len(of_lesson)
    assert len(EVERY) >= 900


def test_a_mistake_says_what_it_loses() -> None:
    for mistake in EVERY:
        if mistake.demand:
            assert mistake.loses
            assert len(mistake.says) == 1
            assert mistake.changes
    kept = Mistake(lesson="04", name="kept", keeps=("one",))
    assert kept.lost_of(["one", "two"]) == {"two"}
    assert Mistake(lesson="04", name="lost", loses=("one",)).lost_of(["one", "two"]) == {"one"}
