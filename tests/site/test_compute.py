"""Pages that compute: without NumPy, and as the command line says."""

import random
import re
from types import SimpleNamespace

from minidist import UsageError
from minidist.pp import draw
from minidist.site import browser_python, compute
from minidist.site.forms import FLUSHING, PAGES, SCHEDULES_PAGE, Slider


def test_pages_load_no_numpy() -> None:
    """In an interpreter that has none; and only files of the project."""
    found = browser_python.modules()
    assert any(path.name == "compute.py" for path in found)
    assert all(browser_python.PACKAGE in path.parents for path in found)


def test_first_views() -> None:
    for page in PAGES:
        assert compute.VIEWS[page.name](page.first())


def test_schedules_are_those_of_the_command_line() -> None:
    """Random settings: the step, idle time and what is held; or the same refusal."""
    drawn = random.Random(1)
    for _ in range(60):
        settings = SCHEDULES_PAGE.first() | {
            one.name: f"{drawn.randint(int(one.least), int(min(one.most, 12))):g}"
            for one in SCHEDULES_PAGE.settings
            if isinstance(one, Slider) and one.name in ("p", "m", "v")
        }
        settings["first"] = drawn.choice(FLUSHING)
        view = compute.view_schedules(settings)
        line = ["--draw", settings["first"], "-p", settings["p"], "-m", settings["m"], "--json", "-"]
        expected = figures_of(settings)
        first = view.split("</figcaption>")[0]
        if isinstance(expected, str):
            assert expected in view, line
        else:
            time, idle = re.search(r"([\d.e+]+) units of time, ([\d.]+)% idle", first).groups()  # type: ignore[union-attr]
            assert float(time) == float(f"{expected['time']:.4g}"), line
            assert abs(float(idle) - 100 * expected["idle"]) < 0.06, line


def figures_of(settings: dict[str, str]) -> dict[str, float] | str:
    """What `python -m minidist.pipeline --draw` reports."""
    chunks = int(settings["v"])
    asked = SimpleNamespace(chunks=chunks, contiguous=0, costs=None)
    try:
        timelines, v = draw.timelines_of(settings["first"], int(settings["p"]), int(settings["m"]), asked)  # type: ignore[arg-type]
    except UsageError as error:
        return str(error)
    step = max(one.end for one in timelines)
    return {"time": step / v, "idle": 1 - sum(one.busy for one in timelines) / step / len(timelines)}


def test_a_later_view_shows_less() -> None:
    whole = compute.view_schedules(SCHEDULES_PAGE.first())
    half = compute.view_schedules(SCHEDULES_PAGE.first() | {"until": "50"})
    assert 0 < half.count("<rect") < whole.count("<rect")
