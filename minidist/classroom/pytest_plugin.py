"""For pytest: `@pytest.mark.points(3, "what the part asks")` and the fixture `submission`.

`pytest lessons/04_ring_all_reduce` grades the exercise.py beside the tests; `--submission FILE` grades another.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minidist.classroom.grade import MachineFault, Part

PARTS = pytest.StashKey[dict[str, Part]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lessons of minidist")
    group.addoption("--submission", metavar="FILE", help="the exercise to grade; default: exercise.py beside the tests")
    group.addoption("--lesson", metavar="FOLDER", help="where on_ranks.py is; default: beside the tests")
    group.addoption("--patience", type=float, default=30.0, help="seconds after which a part's ranks are ended")
    group.addoption("--parts", metavar="FILE", help="write a line of JSON for every part before and after it runs")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "points(number, title): a graded part of a lesson")
    config.stash[PARTS] = {}


@pytest.fixture(scope="session")
def submissions() -> Iterator[dict[Path, Any]]:
    """One Submission for each file: the next part is run on the same ranks, and with what was learnt about patience."""
    made: dict[Path, Any] = {}
    yield made
    for submission in made.values():
        submission.close()


@pytest.fixture
def submission(request: pytest.FixtureRequest, submissions: dict[Path, Any]) -> Any:
    """The student's program: `submission.run("function of on_ranks.py", cases)`."""
    from minidist.classroom.submission import Submission

    beside = request.path.parent
    lesson = Path(request.config.getoption("--lesson") or beside)
    on_ranks = beside if (beside / "on_ranks.py").exists() else lesson
    program = Path(request.config.getoption("--submission") or beside / "exercise.py")
    made = Submission(program, on_ranks / "on_ranks.py", request.config.getoption("--patience"))
    return submissions.setdefault(on_ranks, made)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lesson = Path(config.getoption("--lesson") or ".").resolve()
    for item in items:
        for mark in item.iter_markers("points"):
            points, title = mark.args
            hidden = config.getoption("--lesson") is not None and lesson not in item.path.resolve().parents
            config.stash[PARTS][item.nodeid] = Part(item.nodeid, title, points, hidden=hidden)
            _write(config, config.stash[PARTS][item.nodeid])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
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
            part.message = part.message or (str(fault) if part.machine else report.longreprtext)
        if report.when == "teardown":
            part.done = True
            _write(item.config, part)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    parts = config.stash[PARTS].values()
    if any(part.machine for part in parts):
        terminalreporter.write_line("not graded, for a fault of this machine")
    elif parts:
        earned, possible = sum(part.earned for part in parts), sum(part.points for part in parts)
        terminalreporter.write_line(f"{earned:g} of {possible:g} points")


def _write(config: pytest.Config, part: Part) -> None:
    path = config.getoption("--parts")
    if path:
        with open(path, "a") as file:
            file.write(json.dumps(vars(part)) + "\n")
