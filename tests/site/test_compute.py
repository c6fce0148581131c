"""Pages that compute: without NumPy, and as the command line says."""

import json
import random
import re
from html import unescape
from types import SimpleNamespace

import pytest

from minidist import UsageError
from minidist.plan import command
from minidist.plan.search import families
from minidist.pp import draw
from minidist.pp.by_hand import read_order, write_order
from minidist.pp.schedules import SCHEDULES
from minidist.pp.watch import UNIT_COSTS, simulate
from minidist.site import browser_python, compute
from minidist.site.forms import FLUSHING, MEMORY_PAGE, PAGES, PLAN_PAGE, SCHEDULES_PAGE, Powers, Slider
from minidist.site.views import memory


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


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_memory_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of a plan, as its JSON has them: every kind, what is held at a time, and what is sent along each axis."""
    line = "--model gpt2-medium --ranks 4 --batch 8K --context 1024 --rows 10000 --json -"
    command.main([*line.split(), "--device-memory", "100000GB", "--flops", "1e11"])  # slow: context ranks are of use
    rows = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["hosts"] == 1]
    rows = [row for row in rows if row["schedule"] in ("1f1b", "interleaved")]  # the page has no others
    seen = set[str]()
    for row in random.Random(3).sample(rows, 60):
        view = memory.view_memory(settings_of(row))
        tables = [re.findall("<tr>(.*?)</tr>", part) for part in view.split("</table>")[:2]]
        held, sent = ([cells(line) for line in lines] for lines in tables)
        kinds = {kind: nbytes for kind, nbytes in row["memory"].items() if nbytes}
        assert [found[2] for found in held[1:]] == [f"{nbytes / 1e9:.3f}" for nbytes in kinds.values()], row
        away = {axis: (of["bytes"], of["bytes"] * of["across"]) for axis, of in row["sent"].items()}
        expected = [[axis, f"{(n - far) / 1e9:.3f}", f"{far / 1e9:.3f}"] for axis, (n, far) in away.items()]
        assert [[found[0], *found[2:4]] for found in sent[1:]] == expected, row
        seen |= {*kinds, *away}
    assert seen >= {"parameters", "passing", "ends", "messages", "total", "tensor", "context", "pipeline", "data"}


def settings_of(row: dict[str, int]) -> dict[str, str]:
    """Of the page, for a row of that plan."""
    names = {"v": "chunks", "m": "micro_batches"}
    given = {
        one.name: str(row[names.get(one.name, one.name)])
        for one in MEMORY_PAGE.settings
        if names.get(one.name, one.name) in row
    }
    return MEMORY_PAGE.first() | given | {"model": "gpt2-medium", "context": "1024"}


def cells(row: str) -> list[str]:
    return [unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall("<t[dh].*?>(.*?)</t[dh]>", row)]


def test_a_setting_that_cannot_be_is_one_that_no_plan_tries() -> None:
    """And only such a one gets a line that says why."""
    drawn, refusals = random.Random(4), set[str]()
    for _ in range(80):
        small = {one.name: str(2 ** drawn.randint(0, 2)) for one in MEMORY_PAGE.settings if isinstance(one, Powers)}
        settings = (
            MEMORY_PAGE.first() | small | {"context": "1024", "v": drawn.choice("1123"), "zero": drawn.choice("0123")}
        )
        settings |= {"model": drawn.choice(("gpt2", "gpt2-xl")), "recompute": drawn.choice(("none", "selective"))}
        wanted, choice = memory.asked_for(settings)
        cluster = command.cluster_of(command.parser().parse_args(["--ranks", str(choice.ranks)]))
        tried = any(choice in family for family in families(wanted, cluster) if family[0].zero == choice.zero)
        view = memory.view_memory(settings | {"per_host": "8"})
        assert ("refused" not in view) == tried, settings
        refusals |= {*re.findall('refused">([^<]*)', re.sub(r"\d+", "n", view))}
    assert len(refusals) >= 4, refusals


def test_a_model_has_no_more_positions_than_it_has() -> None:
    view = memory.view_memory(MEMORY_PAGE.first() | {"model": "gpt2"})
    assert "context 4096: gpt2 has 1,024 positions" in view


# ---- plan ------------------------------------------------------------------------------------------------------------


def test_the_plan_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The command that the page shows, run: the same rows, and the same reasons."""
    settings = PLAN_PAGE.first() | {"ranks": "4", "device-memory": "6GB", "scheme": "all-gather"}
    view = unescape(compute.answer("plan", json.dumps(settings)))
    [line] = re.findall("python -m minidist plan (.*?)</code>", view)
    command.main(line.split())
    printed = capsys.readouterr().out
    rows = [cells(row) for row in re.findall("<tr>(.*?)</tr>", view)]
    assert len(rows) > 12
    for row in rows:
        assert row == ["rows", "reason"] or re.search(r"^ *" + r" +".join(map(re.escape, row)) + "$", printed, re.M), (
            row
        )


def test_a_plan_that_cannot_be_says_why() -> None:
    for changed, reason in (
        ({"ranks": "many"}, "must be a whole number"),
        ({"device-memory": "10MB"}, "none of 3,294 rows fits: "),
        ({"context": "9999"}, "has 1,024 positions"),
    ):
        view = unescape(compute.answer("plan", json.dumps(PLAN_PAGE.first() | changed)))
        assert reason in view.split("refused")[1]


# ---- orders written by hand ------------------------------------------------------------------------------------------


def test_an_order_that_is_copied_runs_as_it_did() -> None:
    """Every schedule, as the text to be edited, with the same work and the same messages at the same times."""
    for name in FLUSHING:
        schedule = SCHEDULES[name]
        at = schedule.places(4, 8)
        lines = [write_order(schedule.instructions(place)) for place in at]
        copied = [(place, read_order(line, place)) for place, line in zip(at, lines, strict=True)]
        own = [(place, schedule.instructions(place)) for place in at]
        assert simulate(copied, UNIT_COSTS, 0.1) == simulate(own, UNIT_COSTS, 0.1), name


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ("F1 F2 B1 B2\nF1 B1 F2 B2", "9 units of time"),
        ("F1 B1 F2 B2\nF2 B2 F1 B1", "stage 1 in 'receive gradients 1' for stage 2, and stage 2 in"),
        ("F1 F2 B1 B2\nB1 F1 F2 B2", "stage 2: B1 needs the F"),
        ("F1 F2 W1 B1 B2\nF1 B1 F2 B2", "stage 1: W1 needs the B"),
        ("F1 F2 B1 W1 B2\nF1 F1", "stage 2: F1 is there twice"),
        ("F1 F2 B1\nF1 B1 F2 B2", "stage 1: B2 is missing"),
        ("F1 F2 B1 B2 W3\nF1 B1 F2 B2", "W3 is not of 2 micro-batches"),
        ("F1 F2 B1 B2\nF1 B1 F2 go", "'go' is no work"),
        ("F1 F2 B1 B2\nB1&F1 F2 B2", "only a forward and a backward overlap"),
        ("F1 F2 B1 B2", "2 stages need 2 lines, not 1"),
    ],
)
def test_an_order_by_hand(order: str, says: str) -> None:
    """2 stages, 2 micro-batches: what runs takes the time that one counts on paper, and what cannot says why."""
    view = compute.view_schedules(SCHEDULES_PAGE.first() | {"p": "2", "m": "2", "order": order})
    assert says in unescape(view.split("by hand")[1])
