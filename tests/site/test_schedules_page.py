"""The page of schedules: its pictures next to times that are worked out here, and to what the command reports."""

import itertools
import json
import random
import re
from graphlib import TopologicalSorter
from html import unescape
from typing import Any, NamedTuple

import pytest

from minidist import UsageError
from minidist.papers import pipelines
from minidist.pp.by_hand import read_order, write_order
from minidist.pp.instructions import Backward, Both, Forward, Receive, Send, Weight
from minidist.pp.options import contiguous_of
from minidist.pp.schedules import SCHEDULES
from minidist.pp.watch import UNIT_COSTS, simulate
from minidist.programs.pipeline import CHAPTER
from minidist.site import compute
from minidist.site.forms import SCHEDULES_PAGE, WORDS, Slider
from minidist.site.views import schedules
from minidist.site.views.html import in_words_of_form
from minidist.site.views.schedules import LABELS, LEFT, ROW, WIDTH
from minidist.train import Alone
from sampling import shard_of_this_run
from tables import table

FLUSHING = WORDS["FLUSHING"]

SETTINGS = range(1000)  # seeds of random ones
HERE = shard_of_this_run(SETTINGS, 100)


# ---- times, without the clock ----------------------------------------------------------------------------------------


class Work(NamedTuple):
    """A box of the picture, in units of a stage's time."""

    name: str
    start: float
    end: float


def part_of(shape: str, stage: int, p: int, chunk: int) -> tuple[int, int]:
    """Which model, and which part of it, a chunk is."""
    there, back = stage, p - 1 - stage
    if shape == "cross":
        return chunk, back if chunk else there
    return 0, chunk * p + (back if shape == "v" and chunk % 2 else there)


def work_out(name: str, p: int, m: int, v: int, costs: dict[str, float], message: float) -> list[list[Work]]:
    """Every stage's work, each piece as early as its stage and its messages allow: the longest way through a graph of
    the instructions. It knows their order, and nothing of the clock."""
    schedule = SCHEDULES[name]
    chunks = v if schedule.any_chunks else schedule.chunks
    places = schedule.places(p, m, chunks, contiguous=contiguous_of(name, p, m, None))
    orders = [[*schedule.instructions(place)] for place in places]
    share = 1 if schedule.shape == "cross" else chunks
    steps = {(stage, i): one for stage, order in enumerate(orders) for i, one in enumerate(order)}

    def crosses(at: tuple[int, int], one: Send | Receive) -> tuple[str, int, int, int]:
        """What goes over which boundary."""
        model, part = part_of(schedule.shape, at[0], p, one.chunk)
        return one.what, one.micro_batch, model, part - ((one.what == "activations") != isinstance(one, Send))

    sent = {crosses(at, one): at for at, one in steps.items() if isinstance(one, Send)}
    needs = {(stage, i): [(stage, i - 1)] * (i > 0) for stage, i in steps}
    for at, one in steps.items():
        needs[at] += [sent[crosses(at, one)]] if isinstance(one, Receive) else []
    ends, found = dict[tuple[int, int], float](), [list[Work]() for _ in orders]
    for at in TopologicalSorter(needs).static_order():
        start = max((ends[need] + message * (need[0] != at[0]) for need in needs[at]), default=0.0)
        one, ends[at] = steps[at], start
        if isinstance(one, Forward | Backward | Weight | Both):
            long = sum(costs.values()) if isinstance(one, Both) else costs[type(one).__name__[0]]
            ends[at] = start + long / share
            found[at[0]].append(Work(name_of(one), start, ends[at]))
    return found


def name_of(one: Forward | Backward | Weight | Both) -> str:
    if isinstance(one, Both):
        return f"{name_of(one.forward)}&{name_of(one.backward)}"
    letter = type(one).__name__[0]
    return (letter.lower() if one.chunk else letter) + str(one.micro_batch) + f".{one.chunk}" * (one.chunk > 1)


# ---- random settings -------------------------------------------------------------------------------------------------


def random_settings(seed: int) -> dict[str, str]:
    drawn = random.Random(seed)
    settings = SCHEDULES_PAGE.first() | {
        one.name: f"{one.least + drawn.randint(0, round((min(one.most, 12) - one.least) / one.step)) * one.step:.6g}"
        for one in SCHEDULES_PAGE.settings
        if isinstance(one, Slider) and one.name != "until"
    }
    # Two out of three are sizes that all schedules allow.
    p = 2 * drawn.randint(1, 4)
    settings |= {"p": str(p), "m": str(2 * p * drawn.randint(1, 2))} if drawn.random() < 0.67 else {}
    return settings | {"first": drawn.choice(FLUSHING), "second": drawn.choice(FLUSHING)}


def report(name: str, settings: dict[str, str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any] | str:
    """What `python -m minidist.pipeline --draw` reports for machines, or its refusal."""
    line = ["--draw", name, "--pp", settings["p"], "--micro-batches", settings["m"], "--json", "-"]
    line += ["--chunks", settings["v"]] * SCHEDULES[name].any_chunks
    line += ["--costs", ",".join(settings[cost] for cost in ("F", "B", "W", "message"))]
    try:
        CHAPTER.work(Alone(), CHAPTER.job(line, 1))
    except UsageError as error:
        return str(error)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["drawn"][name]
    return found


def check(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Both pictures of a view show what this file works out, and say what the command reports; or its refusal."""
    settings = random_settings(seed)
    p, m, v = (int(settings[name]) for name in "pmv")
    costs, message = {letter: float(settings[letter]) for letter in "FBW"}, float(settings["message"])
    view = compute.answer("schedules", json.dumps(settings))
    parts = re.findall('<figure>.*?</figure>|<p class="refused">.*?</p>', view, re.DOTALL)
    names = settings["first"], settings["second"]
    drawn = zip(names, parts, strict=True)
    worked = [work_out(name, p, m, v, costs, message) if "<svg" in part else [] for name, part in drawn]
    last = max((one.end for rows in worked for row in rows for one in row), default=0)  # both have one scale
    for name, part, rows in zip(names, parts, worked, strict=True):
        reported = report(name, settings, capsys)
        if isinstance(reported, str):
            assert unescape(part) == f'<p class="refused">{in_words_of_form(reported, LABELS)}</p>', settings
            continue
        assert_drawn(part, rows, (WIDTH - LEFT) / last)
        end = max(one.end for row in rows for one in row)
        busy = sum(one.end - one.start for row in rows for one in row)
        assert reported["time"] == pytest.approx(end), settings
        assert reported["idle"] == pytest.approx(1 - busy / (end * p), abs=1e-9), settings
        held = ", ".join(f"{n:g}" for n in reported["in_flight"])
        assert f"{end:.4g} units of time, {reported['idle']:.1%} idle" in part, settings
        assert f"; micro-batches held at most, by stage: {held}<" in part, settings
        longest = max(row[-1].end - row[0].start for row in rows)
        own = re.findall(r"\(of a stage's own time, ([\d.]+)%\); micro", unescape(part).split("<svg")[0])
        assert [float(percent) for percent in own] == pytest.approx(
            [100 - 100 * busy / (longest * p)] * (end - longest > 1e-9), abs=0.051
        )


def assert_drawn(figure: str, worked: list[list[Work]], scale: float) -> None:
    """Each box that is wide enough to say what it is stands in its stage's line from its start to its end, and says so;
    the others are parts of paths."""
    pattern = r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)" [^>]*><title>(\S+): (\S+) to (\S+)</title>'
    boxes = {(int(y) // ROW, name): [*map(float, (start, end, x, width))]
             for x, y, width, name, start, end in re.findall(pattern, unescape(figure))}  # fmt: skip
    narrow = sum(path.count("M") for path in re.findall(r'<path d="([^"]*)"', figure))
    assert len(boxes) + narrow == sum(map(len, worked))
    for stage, row in enumerate(worked):
        for one in row:
            if (stage, one.name) in boxes:
                at = one.start, one.end, LEFT + one.start * scale, (one.end - one.start) * scale - 0.5
                assert boxes.pop((stage, one.name)) == pytest.approx(at, rel=1e-4, abs=0.01), (stage, one)
            else:
                assert (one.end - one.start) * scale < 4.001
    assert not boxes


def test_pictures_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in HERE:
        check(seed, capsys)


@pytest.mark.slow
def test_pictures_and_figures_of_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in SETTINGS:
        check(seed, capsys)


@pytest.mark.parametrize(("p", "groups", "v"), [(1, 3, 2), (2, 1, 2), (4, 2, 2), (4, 3, 4), (8, 4, 3)])
def test_the_papers_bubbles(p: int, groups: int, v: int) -> None:
    """GPipe and 1F1B idle (p-1)/(m+p-1) of a step, interleaved (p-1)/(vm+p-1) (PTD, 2.2); and hold what papers say."""
    m = p * groups
    for name, work in (("gpipe", m), ("1f1b", m), ("interleaved", v * m)):
        settings = SCHEDULES_PAGE.first() | {"first": name, "p": str(p), "m": str(m), "v": str(v)}
        figure = compute.view_schedules(settings).split("</figure>")[0]
        assert f" {(p - 1) / (work + p - 1):.1%} idle" in figure
        chunks = v if name == "interleaved" else 1
        held = [f"{pipelines.in_flight(name, p, m, stage, chunks) / chunks:g}" for stage in range(1, p + 1)]
        assert f"by stage: {', '.join(held)}<" in figure


@pytest.mark.parametrize("name", FLUSHING)
def test_a_drawing_in_the_terminal(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chapter's page has it. Each piece of work stands in its stage's line from its start to its end."""
    monkeypatch.setenv("COLUMNS", "400")
    CHAPTER.work(Alone(), CHAPTER.job(["--draw", name, "--pp", "4", "--micro-batches", "8"], 1))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("stage ")]
    schedule = SCHEDULES[name]
    v = 2 if schedule.any_chunks else schedule.chunks
    share = 1 if schedule.shape == "cross" else v
    wide = share if share > 1 else 2  # columns to a unit of a stage's time
    for line, row in zip(lines, work_out(name, 4, 8, v, dict.fromkeys("FBW", 1.0), 0.0), strict=True):
        drawn = line[len("stage 0  ") :]
        for one in row:
            first, stop = round(one.start * wide), round(one.end * wide)
            label = "&".join(part[0] + str(int(part[1:].split(".")[0]) % 10) for part in one.name.split("&"))
            assert drawn[first:stop] == label[: stop - first].ljust(stop - first, "-"), (line, one)
            drawn = drawn[:first] + " " * (stop - first) + drawn[stop:]
        assert not drawn.strip()


# ---- step by step ----------------------------------------------------------------------------------------------------


def test_step_by_step() -> None:
    """Next goes to every moment at which a piece of work ends, Back returns; in between, boxes are as long as the part
    that is done, and each stage says what it did last."""
    settings = SCHEDULES_PAGE.first() | {"first": "1f1b", "second": "gpipe", "p": "3", "m": "4", "until": "0"}
    costs = {letter: 1.0 for letter in "FBW"}
    worked = [work_out(name, 3, 4, 2, costs, 0.0) for name in ("1f1b", "gpipe")]
    moments = sorted({one.end for rows in worked for row in rows for one in row})
    for before, moment in itertools.pairwise([0.0, *moments]):
        view = compute.view_schedules(settings)
        assert pressed(view, "Back") == pytest.approx(
            100 * max([0, *(t for t in moments if t < before)]) / moments[-1], abs=0.01
        )
        assert pressed(view, "Next") == pytest.approx(100 * moment / moments[-1], abs=0.01)
        settings["until"] = f"{pressed(view, 'Next'):g}"
        for figure, rows in zip(compute.view_schedules(settings).split("</figure>"), worked, strict=False):
            shown = [float(width) for width in re.findall(r'width="([\d.]+)" [^>]*><title>', figure)]
            done = [min(one.end, moment) - one.start for row in rows for one in row if one.start < moment]
            assert shown == pytest.approx([part * (WIDTH - LEFT) / moments[-1] - 0.5 for part in done], abs=0.1)
            for stage, row in enumerate(rows):
                last = next((one.name for one in row if one.start < moment <= one.end), None)
                last = last or ("waits" if moment < row[-1].end else "has ended")
                if moment < max(one.end for of in rows for one in of):
                    assert f"stage {stage} {last}" in figure
    assert 'id="to-next" data-fills="until" data-text="100.00" aria-disabled="true"' in compute.view_schedules(settings)


def pressed(view: str, button: str) -> float:
    [text] = re.findall(rf'data-fills="until" data-text="([\d.]+)"(?: aria-disabled="true")?>{button}<', view)
    return float(text)


def test_another_moment_needs_no_new_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list[str]()
    real = schedules.draw.timelines_of

    def note(name: str, *how: Any) -> Any:
        runs.append(name)
        return real(name, *how)

    monkeypatch.setattr(schedules.draw, "timelines_of", note)
    settings = SCHEDULES_PAGE.first() | {"m": "7", "p": "5", "second": "gpipe"}
    for changed in ({}, {"until": "50"}, {"until": "20"}, {"order": "F0"}):
        compute.view_schedules(settings | changed)
    assert runs == ["1f1b", "gpipe"]


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


@pytest.mark.parametrize(("order", "says"), table(__file__, "an_order_by_hand"))
def test_an_order_by_hand(order: str, says: str) -> None:
    """2 stages, 2 micro-batches: what runs takes the time that one counts on paper, and what cannot says why, below the
    form."""
    view = compute.view_schedules(SCHEDULES_PAGE.first() | {"p": "2", "m": "2", "order": order})
    [told] = re.findall('<strong>by hand</strong>.*?</figure>|"refused">by hand:.*?</p>', view, re.DOTALL)
    assert says in unescape(told)
    assert ("</figure>" in told) == (view.index(told) < view.rindex("</figure></div>"))


def test_the_view_says_which_schedule_is_faster() -> None:
    """1F1B idles (p-1)/(m+p-1) of a step; ZB-V, of a V shape, sends less and idles less, with as many micro-batches."""
    view = compute.view_schedules(SCHEDULES_PAGE.first())
    assert view.index(
        "<strong>zb-v takes 22.7% less time than 1f1b</strong>: 25.5 units of time against 33"
    ) < view.index("<svg")
    assert "idle 5.9% of them, against 27.3%; a stage holds at most 4 micro-batches, against 4." in view
    for second, says in (("1f1b", ""), ("gpipe", "1f1b takes as long as gpipe")):
        view = compute.view_schedules(SCHEDULES_PAGE.first() | {"second": second})
        assert says in view.split("<svg")[0]
        assert bool(says) == ("against" in view)
