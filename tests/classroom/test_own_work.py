"""Points are for the student's own work: no function leaves it to another one, no released test has done it already."""

import copy
import inspect
import itertools
import sys
from collections.abc import Mapping
from contextlib import suppress
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from classroom.grading import ANSWERS, LESSONS, load
from classroom.quick import on_path
from minidist.classroom.grading.chapter import holders_of
from minidist.classroom.grading.ranks import stand_ins

ORDERS = [[("F", 0), ("F", 1), ("BW", 0), ("BW", 1)], [("F", 0), ("B", 0), ("F", 1), ("W", 0), ("BW", 1)]]


class Model(NamedTuple):
    layers: int = 24
    width: int = 500
    heads: int = 16
    length: int = 300
    batch: int = 48
    parameters: int = 9_000_000


class Layout(NamedTuple):
    data: int = 2
    pipeline: int = 3
    tensor: int = 4


# Of each function that needs no ranks some arguments.
CALLS: dict[str, dict[str, tuple[Any, ...]]] = {
    "01": {"partition": ("wind", 7)},
    "03": {"ranges": (13, 4), "fresh": (np.array([3, 2, 3]), 0, 3, 1)},
    "06": {"narrow": (np.array([0.5, 2.0], np.float32), 8.0), "widen": (np.array([0.5, 2.0], np.float16), 8.0)},
    "10": {"best_interval": (24, 2.0, 8.0)},
    "13": {
        "clock": (ORDERS, {"F": 1.0, "B": 2.0, "W": 3.0}),
        "gpipe": (1, 3, 4),
        "one_f_one_b": (1, 3, 4),
        "zb_h1": (1, 3, 6),
        "shorter": (1, 3, 6, 4),
    },
    "14": {
        "memory": (Model(), Layout()),
        "sent": (Model(), Layout()),
        "place": (5, {"data": 2, "pipeline": 2, "tensor": 2}),
    },
    "15": {
        "model_states": (1000, 4, 2, True),
        "passing_peak": ([(30, 20, None), (10, 90, 9), (20, 50, None)], 3, True, 2),
        "traffic": (1000, 4, 3, True, 3),
    },
    "16": {
        "merge": (np.ones((3, 2)), np.zeros(3), np.full((3, 2), 4.0), np.ones(3)),
        "positions": (24, 3, 1),
        "sent": ("ulysses", 96, 8, 4, 16, 4),
        "choose": (96, 16, 4, 8, 4, 1e6),
    },
    "17": {
        "copy_rows": (np.arange(6.0).reshape(3, 2), np.array([4, -1, 0, 2])),
        "copy_rows_backward": (np.arange(8.0).reshape(4, 2), np.array([4, -1, 0, 1]), 3),
        "add_rows": (np.arange(8.0).reshape(4, 2), np.full((1, 3), 0.5), np.array([2, -1, 0])),
        "balance_loss": (np.full((3, 2), 0.5), np.array([0.25, 0.75]), 0.5),
        "balance_backward": (np.array([[0.25, 0.75], [0.5, 0.5]]), np.array([0.25, 0.75]), 0.5),
    },
}


def load_on_ranks(number: str) -> ModuleType:
    with on_path(LESSONS[number]):
        return load(LESSONS[number] / "on_ranks.py")


@pytest.mark.parametrize("number", LESSONS)
def test_no_two_functions_can_leave_their_work_to_each_other(number: str) -> None:
    """Where the lesson's own functions take the place of a student's, that has an order: some stand on none of them.
    An engine calls all of its methods, so there is a part in which all of those are the student's."""
    on_ranks, asked = load_on_ranks(number), [name.rpartition(".")[2] for name in load_tests(number).ASKED]
    given, stands_on = vars(on_ranks).get("given", {}), vars(on_ranks).get("STANDS_ON", {})
    if any(function.__qualname__ != name for name, function in given.items()):
        text = (LESSONS[number] / "test_exercise.py").read_text()
        assert "of(*METHODS)" in text
        assert "check_all_own(" in text or "check_trains_alike(" in text
    elif len(given) > 1:
        assert set(stands_on) == set(asked)
        list(TopologicalSorter(stands_on).static_order())
        assert any(not set(others) & set(given) for others in stands_on.values())


def test_stand_ins_are_those_that_a_function_stands_on() -> None:
    module = ModuleType("on_ranks")
    for asked, named, expected in (
        (["one"], {"one": (), "two": ("one", "three")}, []),
        (["two"], {"one": (), "two": ("one", "three")}, ["one", "three"]),
        (["two", "three"], {"two": ("one", "three"), "three": ()}, ["one"]),
        (["Engine.two"], None, ["one", "three"]),
        (["a_gap"], {"one": (), "two": ("one",)}, ["one", "two", "three"]),
        ([], {"one": (), "two": ("one",)}, ["one", "two", "three"]),
    ):
        vars(module).clear()
        module.given = dict.fromkeys(("one", "two", "three"), print)  # type: ignore[attr-defined]
        if named is not None:
            module.STANDS_ON = named  # type: ignore[attr-defined]
        assert [*stand_ins(module, asked)] == expected


def test_what_holds_something_of_a_hidden_module_is_hidden_too(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"minidist.{name}" for name in ("the_answer", "a_user_of_it", "a_user_of_that", "another")]
    modules = dict(zip(names, map(ModuleType, names), strict=True))
    for name, module in modules.items():
        module.function = type("Function", (), {"__module__": name})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    for holder, held in itertools.pairwise(reversed(names[:3])):
        vars(modules[holder])["imported"] = modules[held].function
    assert holders_of(names[:1]) == set(names[:3])


def load_tests(number: str) -> ModuleType:
    with on_path(LESSONS[number]):
        return load(LESSONS[number] / "test_exercise.py")


def functions_of(module: ModuleType) -> Mapping[str, Any]:
    return {
        name: it for name, it in vars(module).items() if inspect.isfunction(it) and it.__module__ == module.__name__
    }


@pytest.mark.parametrize("number", CALLS)
def test_no_function_of_a_released_test_is_an_answer(number: str, tmp_path: Path) -> None:
    (tmp_path / "exercise.py").write_text(ANSWERS[number])
    right = load(tmp_path / "exercise.py")
    released = {**functions_of(load_tests(number)), **functions_of(load_on_ranks(number))}
    for asked, arguments in CALLS[number].items():
        expected = getattr(right, asked)(*copy.deepcopy(arguments))
        for name, function in released.items():
            found = None
            with suppress(Exception, pytest.fail.Exception):  # most take something else
                found = function(*copy.deepcopy(arguments))
            assert not equal(found, expected), f"{name} of lesson {number}'s tests is {asked}"


def equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return isinstance(found, np.ndarray) and np.array_equal(found, expected)
    return type(found) is type(expected) and bool(found == expected)
