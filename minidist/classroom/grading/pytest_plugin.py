"""For pytest: `@pytest.mark.points(3, "what the part asks")` and the fixture `submission`.

`pytest lessons/04_ring_all_reduce` grades the student's copy in work/04_ring_all_reduce/, or if there is none the
exercise.py beside the tests, and says which; `--submission FILE` grades another. A test file says in ASKED what a
lesson asks for ("reduce_scatter", "ZeRO3.reduce"), and in HIDDEN which modules have it: chapters, or "answers".
"""

import gc
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minidist.classroom.grading.grade import Part, exercise_of
from minidist.cli.options import path_name
from minidist.system import processes

PARTS = pytest.StashKey[dict[str, Part]]()
SUBMISSIONS = pytest.StashKey[dict[Path, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lessons of minidist")
    group.addoption(
        "--submission",
        type=path_name,
        metavar="FILE",
        help="the exercise to grade; default: the copy in work/, else exercise.py beside the tests",
    )
    group.addoption(
        "--lesson", type=path_name, metavar="FOLDER", help="where on_ranks.py is; default: beside the tests"
    )
    group.addoption("--patience", type=float, default=10.0, help="seconds of processor time that a part's rank may use")
    group.addoption("--wire", choices=("router", "mpi"), default="router", help="what ranks send over")
    group.addoption("--seed", type=int, help="of inputs and of the order of messages: repeats a grade exactly")
    group.addoption("--only", metavar="WORDS", help="parts with these words in their titles")
    group.addoption("--parts", type=int, metavar="FD", help="write JSON for every part before and after it runs")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "points(number, title): a graded part of a lesson")
    config.stash[PARTS], config.stash[SUBMISSIONS] = {}, {}
    if config.getoption("--seed") is None:
        config.option.seed = secrets.randbits(30)
    if config.getoption("--parts") is not None:  # then grade.py has started this process, and may end it
        processes.unwind_at_signals()


@pytest.fixture(scope="session")
def submissions(pytestconfig: pytest.Config) -> Iterator[dict[Path, Any]]:
    """One Submission for each lesson: what was learned about a program in one part is known in the next."""
    made = pytestconfig.stash[SUBMISSIONS]
    yield made
    for submission in made.values():
        submission.close()


@pytest.fixture
def submission(request: pytest.FixtureRequest, submissions: dict[Path, Any]) -> Any:
    """The student's program: `submission.run("function of on_ranks.py", cases, ["what is asked"])`."""
    from minidist.classroom.grading.submission import Submission

    beside, option = request.path.parent, request.config.getoption
    lesson = Path(option("--lesson") or beside)
    on_ranks = beside if (beside / "on_ranks.py").exists() else lesson
    if on_ranks not in submissions:
        program = Path(option("--submission") or exercise_of(beside))
        asked, hidden = (getattr(request.module, name, ()) for name in ("ASKED", "HIDDEN"))
        patience, wire, seed = (option(name) for name in ("--patience", "--wire", "--seed"))
        submissions[on_ranks] = Submission(
            program, on_ranks / "on_ranks.py", patience, wire, seed, asked=asked, hidden=hidden
        )
    submissions[on_ranks].begin(request.node.name)
    return submissions[on_ranks]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lesson = Path(config.getoption("--lesson") or ".").resolve()
    if words := config.getoption("--only"):
        items[:] = [item for item in items if any(words in mark.args[1] for mark in item.iter_markers("points"))]
    for item in items:
        for mark in item.iter_markers("points"):
            points, title = mark.args
            hidden = config.getoption("--lesson") is not None and lesson not in item.path.resolve().parents
            config.stash[PARTS][item.nodeid] = Part(item.nodeid, title, points, hidden=hidden)
            _write(config, vars(config.stash[PARTS][item.nodeid]))


def pytest_collection_finish() -> None:
    gc.freeze()  # these objects stay: the collector need not scan them again every few messages


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    from minidist.classroom.grading.wires import MachineFault

    report: Any = yield
    part = item.config.stash[PARTS].get(item.nodeid)
    if part:
        part.seconds += report.duration
        if report.when == "call" and report.passed:
            part.earned = part.points
        elif not report.passed:
            part.earned = 0
            fault = call.excinfo.value if call.excinfo else None
            part.machine = part.machine or isinstance(fault, MachineFault)
            if part.machine:
                item.session.shouldstop = "there will be no grade"
            part.message = part.message or (str(fault) if part.machine else report.longreprtext)
        if report.when == "teardown":
            part.done = True
            _write(item.config, vars(part))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if config.stash[PARTS]:
        every = config.stash[SUBMISSIONS].values()
        forms = [(form, weight, n) for one in every for (form, weight), n in one.forms.items()]
        used, limit = sum(one.used for one in every), sum(one.whole for one in every)
        said = {"used": used, "limit": limit, "forms": forms}
        _write(config, {"seed": config.getoption("--seed"), "notes": notes(config), **said})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    parts = config.stash[PARTS].values()
    if any(part.machine for part in parts):
        terminalreporter.write_line("not graded, for a fault of this machine")
    elif parts:
        earned, possible = sum(part.earned for part in parts), sum(part.points for part in parts)
        seed = config.getoption("--seed")
        for graded in config.stash[SUBMISSIONS].values():
            terminalreporter.write_line(f"graded: {graded.program}")
        terminalreporter.write_line(f"{earned:g} of {possible:g} points (--seed {seed} grades the same again)")
        for note in notes(config):
            terminalreporter.write_line(note)


def notes(config: pytest.Config) -> list[str]:
    """Notes for the instructor, which change no points."""
    return [note for submission in config.stash[SUBMISSIONS].values() for note in submission.notes()]


def _write(config: pytest.Config, value: dict[str, Any]) -> None:
    if (descriptor := config.getoption("--parts")) is not None:
        os.write(descriptor, (json.dumps(value) + "\n").encode())
