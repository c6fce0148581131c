"""For a lesson's notebook: check what a student writes into a gap, and keep what a student predicts.

    from minidist.classroom.notebook.lesson import check, compare, predict

    check("reduce_scatter_step")     the function of the cell above, run on ranks as the grader runs it
    predict("busiest rank", 1.5)     kept in predictions.json beside the notebook ...
    compare({"busiest rank": 1.75})  ... and shown next to what was counted

A lesson's test_exercise.py has a check for each gap in GAPS. Its answers.py has functions with which the notebook goes
on if a gap is not filled. For a function of the exercise, `check` runs its first graded part on exercise.py; if that
fails, the notebook goes on with the function of answers.py or else of the chapter.
"""

import functools
import importlib
import importlib.util
import json
import math
import numbers
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import EllipsisType, ModuleType
from typing import Any

import numpy as np

import minidist
from minidist.classroom.notebook.brought import brought_along, find_definition
from minidist.system.files import temporary_folder

CLONE = Path(minidist.__file__).parents[1]
PATIENCE = 3.0  # seconds of processor time for a rank of a check
theirs: set[str] = set()  # functions for which the student's own is in use

# ---- gaps ------------------------------------------------------------------------------------------------------------


def __getattr__(name: str) -> Any:  # pictures and notebooks of the former version import `show` and `Watched` from here
    from minidist.system import former

    return former.attribute(__name__, name)


def check(name: str) -> None:
    """Run the function `name` as the grader does, and say what is wrong. If it is right, the notebook goes on with it,
    else with the lesson's function. For a method, such as "ZeRO3.forget", only say what is wrong."""
    tests = _tests()
    if name in tests.GAPS:
        where, used = "", "the lesson's own"
        said = _said_of_cells(name, tests.GAPS[name], tests)
    elif name in tests.ASKED:
        where, used = " in exercise.py", "the lesson's own" if _given(name) else "the chapter's"
        part = getattr(tests, "PARTS", {}).get(name) or getattr(tests, f"test_{name.rpartition('.')[2]}")
        said = _said(Path("exercise.py"), name, part, tests.HIDDEN)
    else:
        known = ", ".join([*sorted(tests.GAPS), *tests.ASKED])
        print(f"✗ In this lesson there is no {name} to check: {known}.")
        return
    if not said:
        theirs.add(name)
        print(f"✓ {name} is right. The notebook goes on with yours.")
    else:
        theirs.discard(name)
        if "is not written yet" in said:
            print(f"○ {name}{where} is not filled in yet; the notebook goes on with {used}.")
        else:
            print(f"✗ {said}\n  Until {name} is right, the notebook goes on with {used}.")
    if "." not in name:
        _shell().user_ns[name] = _function(name, tests)


def _function(name: str, tests: ModuleType) -> Any:
    """The function that the notebook is to use under this name."""
    if name not in theirs:
        return _given(name) or getattr(importlib.import_module(tests.HIDDEN[0]), name)
    if name in tests.ASKED:
        exercise = importlib.reload(importlib.import_module("exercise"))
        for other in theirs.intersection(tests.ASKED, vars(exercise)):  # as they are now: ranks import them by name
            _shell().user_ns[other] = getattr(exercise, other)
        return getattr(exercise, name)
    namespace = _shell().user_ns
    _, text = find_definition(name, namespace["In"]) or ("", "")
    exec(compile(text, "the cell", "exec"), namespace)
    return namespace[name]


def _given(name: str) -> Any:
    """The lesson's own function of that name, or class of that method, if answers.py defines it; else None. In copies
    of the version before, answers are in given.py."""
    own = "answers" if importlib.util.find_spec("answers") else "given"
    function = getattr(importlib.import_module(own), name.partition(".")[0], None)
    return function if getattr(function, "__module__", "") == own else None


def whose(name: str) -> str:
    """ "yours", or "not yours yet": which function of that name the notebook uses, by its last check."""
    used = "the lesson's own" if _given(name) else "the chapter's"
    return "yours" if name in theirs else f"not yours yet: {used}"


def _said_of_cells(name: str, part: Callable[[Any], None], tests: ModuleType) -> str:
    """What a check says of a function that a cell defines, with what it needs of other cells, in the cell's lines."""
    namespace = _shell().user_ns
    if wrong := _no_python(name, namespace["In"]):
        return wrong
    found = find_definition(name, namespace["In"])
    if found is None:
        return f"No cell has defined {name}: run the cell with `def {name}` first."
    _, text = found
    others, values, _ = brought_along(compile(text, name, "exec"), {**namespace, name: None})
    kept = {key: value for key, value in values.items() if key != name and isinstance(value, numbers.Number | str)}
    more = ["import numpy as np", *(code for _, code in others), *(f"{key} = {kept[key]!r}" for key in kept)]
    with temporary_folder() as folder:
        program = folder / f"{name}.py"
        whole = text + "\n" + "\n".join(code.strip("\n") for code in more) + "\n"
        program.write_text(whole, encoding="utf-8")
        said = _said(
            program, name, part, tuple(module for module in tests.HIDDEN if module not in ("answers", "given"))
        )
    last, lines = len(text.splitlines()), whole.splitlines()

    def in_the_cell(match: re.Match[str]) -> str:
        number = int(match[1])
        place = f"line {number} of the cell" if number <= last else "a line of another cell"
        return f"{place}, `{lines[number - 1].strip()}`"

    # A traceback's frame, with its source line and the marks below it. A comprehension is a frame of its own.
    frame = rf'File "?{name}\.py"?, line (\d+), in [\w<>]+\n.*(\n +[~^]+$)?'
    said = re.sub(frame, in_the_cell, said, flags=re.MULTILINE)
    said = re.sub(r"^( +.*\n)\1+", r"\1", said, flags=re.MULTILINE)
    return re.sub(rf"{name}\.py:(\d+)(?: in [\w<>]+)?", in_the_cell, said)


def _no_python(name: str, cells: list[str]) -> str:
    """What is wrong with the last cell with a `def` of `name`, if it is not valid Python, and so defined nothing."""
    for cell in reversed(cells):
        if re.search(rf"^def {name}\b", cell, re.MULTILINE):
            try:
                compile(cell, "the cell", "exec")
            except SyntaxError as error:
                return f"The last cell with `def {name}` is no Python, line {error.lineno}: {error.msg}"
            return ""
    return ""


def _said(program: Path, name: str, part: Callable[[Any], None], hidden: tuple[str, ...]) -> str:
    """What a part says of a program, "" if it earns its points. hidden: modules that its ranks cannot import; cells may
    use the lesson's own functions."""
    import pytest

    from minidist import UsageError
    from minidist.classroom.grading.submission import Submission
    from minidist.classroom.grading.wires import MachineFault

    lesson = _folder()
    try:
        wire, seed = _wire(lesson, hidden), secrets.randbits(30)
        submission = Submission(program, lesson / "on_ranks.py", PATIENCE, "router", seed, (name,), hidden, wire)
        part(submission)
    except (pytest.fail.Exception, MachineFault, UsageError) as lost:
        return str(lost)
    return ""


@functools.cache
def _wire(lesson: Path, hidden: tuple[str, ...]) -> Any:
    """A process that forks the ranks of a notebook's checks; it ends with the notebook's process."""
    from minidist.classroom.grading.wires import RouterWire

    return RouterWire(lesson / "on_ranks.py", hidden, isolate=False)


@functools.cache
def _tests() -> ModuleType:
    spec = importlib.util.spec_from_file_location("test_exercise", _folder() / "test_exercise.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _folder() -> Path:
    """The folder with the tests of this notebook's lesson: here, or in lessons/ if this is a copy in work/."""
    here = Path.cwd()
    for folder in (
        here,
        here.parents[min(1, len(here.parents) - 1)] / "lessons" / here.name,
        CLONE / "lessons" / here.name,
    ):
        if (folder / "test_exercise.py").is_file():
            return folder
    raise minidist.UsageError(f"{here} is no lesson's folder: make lessons makes you a copy of each, in work/")


def _shell() -> Any:
    return sys.modules["IPython"].get_ipython()


# ---- predictions -----------------------------------------------------------------------------------------------------


def predict(question: str, answer: float | EllipsisType = ...) -> None:
    """Keep a number that answers `question`; `...` means none yet. For anything else, print why it is not kept."""
    if answer is ...:
        kept = _predictions().get(question)
        print(f"{question}: " + ("no prediction yet; put a number in place of ..." if kept is None else f"{kept:g}"))
    elif wrong := _no_number(answer):
        print(f"{question}: not kept. {wrong}")
    else:
        file = _predictions_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(_predictions() | {question: float(answer)}, indent=1, ensure_ascii=False) + "\n")
        print(f"{question}: you predict {float(answer):g}")


def _no_number(answer: object) -> str:
    """Why an answer is not a number that can be compared with a count; "" if it is."""
    if isinstance(answer, str):
        number = re.search(r"-?\d[\d_]*\.?\d*", answer)
        return f"{answer!r} is text: write {number[0] if number else '1.5'}, without quotes and unit"
    if isinstance(answer, bool):
        return f"{answer} is no quantity: write a number such as 1.5"
    if isinstance(answer, tuple | list | np.ndarray):
        return "These are several numbers, or a comma that should be a point: write one, such as 1.5 or 1_000"
    if not isinstance(answer, numbers.Real):
        return f"A {type(answer).__name__} is no number: write one such as 1.5"
    try:
        return "" if math.isfinite(float(answer)) else f"{answer} is not finite: write a number such as 1.5"
    except OverflowError:
        return "That is too large to be compared: write a number such as 1.5"


def compare(counted: Mapping[str, float]) -> None:
    """Print each question with what was predicted and what was counted."""
    predictions = _predictions()
    width = max(map(len, counted))
    print(f"{'':{width}}  you predicted    counted")
    for question, count in counted.items():
        predicted = predictions.get(question)
        said = "-" if predicted is None else f"{predicted:g}"
        print(f"{question:{width}}{said:>15}{count:>11g}{_verdict(predicted, count)}")


def _verdict(predicted: float | None, count: float) -> str:
    if predicted is None:
        return ""
    if math.isclose(predicted, count, rel_tol=0.02):
        return "   right"
    if not count or predicted <= 0:
        return "   not so"
    return f"   {float(f'{predicted / count:.2g}'):g} times what was counted"  # 110 times, not 1.1e+02


def _predictions() -> dict[str, float]:
    file = _predictions_file()
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
    except ValueError:
        print(f"{file} cannot be read: delete it, and predict again")
        return {}


def _predictions_file() -> Path:
    """The file next to the notebook; if that was opened in lessons/, next to where its copy in work/ is or would be."""
    here = Path.cwd()
    return (here.parents[1] / "work" / here.name if here.parent.name == "lessons" else here) / "predictions.json"
