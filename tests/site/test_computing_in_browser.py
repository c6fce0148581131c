"""The pages that compute, driven as readers drive them: sliders, buttons, keys, the address bar (`make site-test`)."""

import contextlib
import html
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from minidist.site import compute, content, forms, traces
from minidist.site.forms import MEMORY_PAGE, PAGES, PLAN_PAGE, SCHEDULES_PAGE

TRIED = {"memory": 40, "schedules": 30, "plan": 4}  # random settings of a page; with -m slow, 1,000 in all
ALL = {"memory": 480, "schedules": 480, "plan": 40}
SET = """(wanted) => {
    const form = document.querySelector('form.compute');
    for (const [name, value] of Object.entries(wanted)) {
        const field = form.elements[name];
        field.value = 'powers' in field.dataset ? Math.log2(value) : value;
    }
    form.dispatchEvent(new Event('input'));
}"""
SHOWS = """expected => {
    const words = document.getElementById('view').innerHTML.replace(/<[^>]*>/g, ' ');
    const text = new DOMParser().parseFromString(words, 'text/html').documentElement.textContent;
    return text.split(/\\s+/).filter(word => word).join(' ') === expected;
}"""
ANSWERED = "(before) => { const now = document.getElementById('view').dataset.number; return now && now !== before; }"
NUMBER = "document.getElementById('view').dataset.number ?? ''"
TEXTS = {
    "ranks": ("1", "2", "4", "6"),
    "batch": ("8K", "16K"),
    "device-memory": ("4GB", "16GB", "80GB"),
    "order": ("", "F0 B0", "F0 F1 B0 B1\nF0 B0 F1 B1"),
}


def random_settings(page: forms.Page, seed: int) -> dict[str, str]:
    """Values of a page's form. A text keeps its value, or becomes one that its page is tried with."""
    drawn, found = random.Random(f"{page.name} {seed}"), {}
    for one in page.settings:
        if isinstance(one, forms.ChoiceField):
            found[one.name] = drawn.choice(one.words)
        elif isinstance(one, forms.Slider):
            steps = round((min(one.most, one.least + 24 * one.step) - one.least) / one.step)
            found[one.name] = f"{one.least + drawn.randint(0, steps) * one.step:.10g}"
        elif isinstance(one, forms.Powers):
            most = min(one.most, one.least * 16)
            found[one.name] = str(2 ** drawn.randint(one.least.bit_length() - 1, most.bit_length() - 1))
        else:
            found[one.name] = drawn.choice(TEXTS.get(one.name, (one.value,)))
    return found | ({"until": drawn.choice(("100", "37.5"))} if "until" in found else {})


def text_of(page: forms.Page, settings: dict[str, str]) -> list[str]:
    return words(compute.answer(page.name, json.dumps(settings)))


def words(made: str) -> list[str]:
    """Of HTML, as a reader sees them."""
    return html.unescape(re.sub(r"<[^>]*>", " ", made)).split()


def shown_by(page: Any) -> list[str]:
    return words(page.evaluate("document.getElementById('view').innerHTML"))


@pytest.fixture
def open_computing(opened: Callable[..., Any], address: str) -> Callable[..., Any]:
    """Opens a page that computes, and waits for Python's first answer."""

    def open_page(computing: forms.Page, settings: str = "") -> Any:
        page = opened()
        page.goto(f"{address}{computing.name}.html{settings}")
        page.wait_for_function(ANSWERED, arg="", timeout=240_000)
        return page

    return open_page


def answer_of(page: Any, do: Callable[[], object]) -> list[str]:
    """What the page shows after its reader has done something."""
    before = page.evaluate(NUMBER)
    do()
    page.wait_for_function(ANSWERED, arg=before, timeout=240_000)
    return shown_by(page)


@pytest.mark.parametrize("computing", PAGES, ids=lambda page: page.name)
def test_first_views_are_there_before_python(computing: forms.Page, site: Path) -> None:
    made = (site / f"{computing.name}.html").read_text()
    view = made.partition('<div id="view"')[2].partition(">")[2]
    first = compute.answer(computing.name, json.dumps(computing.first()))
    assert words(view)[: len(words(first))] == words(first)
    assert view.count("<rect") == first.count("<rect")


def compare(computing: forms.Page, page: Any, seeds: Sequence[int]) -> Iterator[int]:
    """Random settings in the browser, next to the same function here; the milliseconds of each."""
    for seed in seeds:
        settings = random_settings(computing, seed)
        shown = answer_of(page, lambda settings=settings: page.evaluate(SET, settings))  # type: ignore[misc]
        assert shown == text_of(computing, settings), settings
        yield int(page.evaluate("document.getElementById('view').dataset.took"))


@pytest.mark.parametrize("computing", PAGES, ids=lambda page: page.name)
def test_the_browser_computes_what_python_computes(computing: forms.Page, open_computing: Callable[..., Any]) -> None:
    page = open_computing(computing)
    assert shown_by(page) == text_of(computing, computing.first())
    told(computing, [*compare(computing, page, range(TRIED[computing.name]))])


@pytest.mark.slow
@pytest.mark.parametrize("computing", PAGES, ids=lambda page: page.name)
def test_the_browser_at_a_thousand_settings(computing: forms.Page, open_computing: Callable[..., Any]) -> None:
    told(computing, [*compare(computing, open_computing(computing), range(ALL[computing.name]))])


def told(computing: forms.Page, took: list[int]) -> None:
    """For a reader of -s; nothing here depends on time."""
    took.sort()
    median, most_of_them = took[len(took) // 2], took[len(took) * 9 // 10]
    print(f"\n{computing.name}: median {median} ms, nine of ten {most_of_them} ms, most {took[-1]} ms")


@pytest.mark.parametrize("computing", PAGES, ids=lambda page: page.name)
def test_the_address_holds_the_setting(computing: forms.Page, open_computing: Callable[..., Any]) -> None:
    """Loaded again, and opened by another reader, a page shows the same; and so does the form."""
    page, settings = open_computing(computing), random_settings(computing, 3)
    shown = answer_of(page, lambda: page.evaluate(SET, settings))
    page.reload()
    page.wait_for_function(ANSWERED, arg="", timeout=240_000)
    other = open_computing(computing, "#" + page.url.partition("#")[2])
    for one in (page, other):
        assert shown_by(one) == shown
        fields = dict(one.evaluate("[...new FormData(document.querySelector('form.compute'))]"))
        powers = {setting.name for setting in computing.settings if isinstance(setting, forms.Powers)}
        assert {name: str(2 ** int(value)) if name in powers else value for name, value in fields.items()} == settings


@pytest.mark.parametrize("computing", PAGES, ids=lambda page: page.name)
def test_an_address_that_is_wrong_changes_nothing(computing: forms.Page, open_computing: Callable[..., Any]) -> None:
    """Words that no field has, and numbers that are none: each field keeps its first value, and the page says so. Texts
    take anything."""
    wrong = {one.name: "nosuch" for one in computing.settings if not isinstance(one, forms.Text)}
    page = open_computing(computing, f"#{urlencode(wrong | {'unknown': '1'})}")
    assert shown_by(page) == text_of(computing, computing.first())
    said = page.locator(".refused.address").inner_text()
    assert all(f"{name} = nosuch: not " in said for name in wrong)
    assert "unknown: this page has no such setting" in said
    field = page.locator(f"[name={computing.settings[0].name}]")
    answer_of(page, lambda: field.select_option(index=1))
    assert page.locator(".refused.address").count() == 0


def test_an_address_bends_nothing(open_computing: Callable[..., Any]) -> None:
    """Numbers between the steps of a slider, and beyond its ends."""
    page = open_computing(MEMORY_PAGE, "#dp=12&zero=7&capacity=81&tp=2&context=128")
    assert shown_by(page) == text_of(MEMORY_PAGE, MEMORY_PAGE.first() | {"tp": "2"})
    assert page.locator(".refused.address").inner_text() == (
        "The address asks for what cannot be. dp = 12: not a power of two from 1 to 1024; this page shows 8."
        " zero = 7: not in steps of 1 from 0 to 3; this page shows 1."
        " capacity = 81: not in steps of 8 from 8 to 288; this page shows 80."
        " context = 128: not a power of two from 256 to 131072; this page shows 4096."
    )


def test_back_undoes_a_change(open_computing: Callable[..., Any]) -> None:
    """Each change of a setting; a slider that is moved through many values is one change."""
    page, first = open_computing(MEMORY_PAGE), MEMORY_PAGE.first()
    page.get_by_label("ZeRO stage").focus()
    answer_of(page, lambda: page.keyboard.press("ArrowRight"))
    answer_of(page, lambda: page.get_by_label("recomputation").select_option("none"))
    box = page.get_by_label("data ranks").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    page.mouse.down()
    for part in (0.4, 0.6, 0.99):
        page.mouse.move(box["x"] + box["width"] * part, box["y"] + box["height"] / 2)
    page.mouse.up()
    settings = [first, first | {"zero": "2"}, first | {"zero": "2", "recompute": "none"}]
    for wanted in reversed(settings):
        page.go_back()
        expected = " ".join(text_of(MEMORY_PAGE, wanted))
        page.wait_for_function(SHOWS, arg=expected, timeout=60_000)


@pytest.mark.parametrize("name", ["memory", "schedules"])
def test_the_picture_comes_before_the_controls(name: str, address: str, opened: Callable[..., Any]) -> None:
    for width in (390, 1280):
        page = opened(viewport={"width": width, "height": 900})
        page.goto(f"{address}{name}.html")
        picture, form = (page.locator(part).first.bounding_box() for part in ("#view svg", "form.compute"))
        assert picture["y"] + picture["height"] <= min(form["y"], 800)


def test_what_a_change_changes_is_marked(open_computing: Callable[..., Any]) -> None:
    """In the tables of memory and traffic: each figure of a row that is another than before, and rows that are new."""
    page = open_computing(MEMORY_PAGE)
    assert page.locator("#view .changed").count() == 0

    def rows() -> dict[str, list[str]]:
        found = [row.locator("td").all_inner_texts() for row in page.locator("#view tbody tr").all()]
        return {title: [title, *more] for title, *more in found}

    before = rows()
    answer_of(page, lambda: page.evaluate(SET, MEMORY_PAGE.first() | {"zero": "3"}))
    after = rows()
    was = {title: before.get(title, [""] * len(row)) for title, row in after.items()}
    marked = [now for title, row in after.items() for now, then in zip(row, was[title], strict=True) if now != then]
    assert page.locator("#view td.changed").all_inner_texts() == marked
    assert after.keys() - before.keys()
    assert 0 < len(marked) < sum(map(len, after.values()))


def test_the_plan_answers_with_more_rows(open_computing: Callable[..., Any]) -> None:
    page = open_computing(PLAN_PAGE)
    field = page.get_by_label("rows of the table")
    field.fill("3")
    shown = answer_of(page, lambda: field.press("Enter"))
    assert shown == text_of(PLAN_PAGE, PLAN_PAGE.first() | {"rows": "3"})
    assert page.locator("#view table.plan tbody tr").count() == 3


@pytest.mark.parametrize("lost", ["worker.js", "pyodide.mjs", "pyodide.asm.wasm", "minidist.zip"])
def test_what_cannot_be_loaded_is_said(lost: str, browser: Any, address: str) -> None:
    """The first view stays, and the reader knows that no other one will come."""
    with contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        page.route(f"**/{lost}", lambda asked: asked.abort())
        page.goto(f"{address}{MEMORY_PAGE.name}.html")
        page.wait_for_function(
            "document.getElementById('state').value.includes('could not be loaded')", timeout=240_000
        )
        assert page.locator("#view svg").count() == 1


# ---- schedules -------------------------------------------------------------------------------------------------------


def test_an_order_is_edited_by_hand(open_computing: Callable[..., Any]) -> None:
    """Copy 1F1B's order, break it, and mend it: the clock says which stage waits for which, and the time it takes."""
    page = open_computing(SCHEDULES_PAGE, "#p=2&m=2&first=1f1b&second=gpipe&v=2&F=1&B=1&W=1&message=0&until=100")
    text = page.get_by_role("textbox", name="by hand")
    answer_of(page, lambda: page.get_by_text("Edit the order of 1f1b by hand").click())
    assert text.input_value() == "F0 F1 B0 B1\nF0 B0 F1 B1"
    assert page.locator("#view figure").count() == 3  # two schedules and this one, one under the other
    assert "9 units of time, 33.3% idle" in page.locator("#view figure").nth(2).inner_text()
    answer_of(page, lambda: text.fill("F0 B0 F1 B1\nF1 B1 F0 B0"))
    said = page.locator("#view .refused").inner_text()
    assert said.startswith("by hand: deadlock: stage 0 in 'receive gradients 0' for stage 1, and stage 1 in")
    answer_of(page, lambda: text.fill("F0 F1 B1 B0\nF0 F1 B1 B0"))  # GPipe's
    by_hand = page.locator("#view figure").nth(2).inner_text().partition("):")[2]
    assert by_hand == page.locator("#view figure").nth(1).inner_text().partition("):")[2]
    answer_of(page, lambda: page.get_by_text("Remove the order by hand").click())
    assert page.locator("#view figure").count() == 2
    assert text.input_value() == ""


def test_schedules_step_by_step_with_the_keyboard(open_computing: Callable[..., Any]) -> None:
    """Next keeps the focus: Enter goes on from moment to moment, to the end; both pictures grow together."""
    page = open_computing(SCHEDULES_PAGE, "#p=2&m=2&first=1f1b&second=gpipe&v=2&F=1&B=1&W=1&message=0&until=0")
    assert page.locator("#view svg title").count() == 0
    page.locator("#to-next").focus()
    seen = []
    for _ in range(9):
        answer_of(page, lambda: page.keyboard.press("Enter"))
        seen.append([figure.locator("title").count() for figure in page.locator("#view figure").all()])
    # 1F1B: F0 | F1, F0 | B0 on stage 1 | W0 | B0, F1 | W0, B1 | W1 | B1 | W1, as one counts on paper
    assert seen[0] == [1, 1]
    assert seen[1] == [3, 3]
    assert seen[-1] == [12, 12]
    assert all(before <= after for before, after in itertools.pairwise(seen))
    assert page.locator("#to-next").is_disabled()
    answer_of(page, lambda: page.locator("#to-back").click())
    assert "Until time 8: stage 0 B1, stage 1 has ended." in page.locator("#view figure").first.inner_text()


# ---- collectives -----------------------------------------------------------------------------------------------------


def test_the_first_view_of_collectives_is_there_without_a_script(site: Path) -> None:
    name, ranks = content.FIRST
    view = content.draw_collective({content.FIRST: traces.trace(name, ranks)}, name, ranks)[0]
    assert view in (site / "collectives.html").read_text()


@pytest.mark.parametrize(("name", "n"), [("reduce-scatter", 4), ("all-to-all", 3), ("recursive-doubling", 5)])
def test_collectives_play_what_was_recorded(name: str, n: int, address: str, opened: Callable[..., Any]) -> None:
    """The arrow keys go through all steps; loaded again, the page is at the same one; then back with a button."""
    recorded = {(name, n): traces.trace(name, n)}
    views = [words(view) for view in content.draw_collective(recorded, name, n)]
    page = opened()
    page.goto(f"{address}collectives.html#name={name}&ranks={n}&step=0")
    for step, view in enumerate(views):
        said = f"after step {step} of {len(views) - 1}" if step else "at the start"
        page.wait_for_selector(f"#view th:has-text('holds {said}')")
        assert shown_by(page) == view
        page.keyboard.press("ArrowRight")
    page.reload()
    page.wait_for_selector(f"#view th:has-text('after step {len(views) - 1}')")
    assert shown_by(page) == views[-1]
    assert page.get_by_role("button", name="Next", exact=True).is_disabled()
    page.get_by_role("button", name="Back", exact=True).click()
    page.wait_for_selector(f"#view th:has-text('after step {len(views) - 2} of')")
    assert shown_by(page) == views[-2]


def test_an_address_of_no_collective_shows_the_first(site: Path, address: str, opened: Callable[..., Any]) -> None:
    page = opened()
    page.goto(f"{address}collectives.html#name=nosuch&ranks=many&step=")
    page.wait_for_function("location.hash.includes('reduce-scatter')")
    assert page.locator("#view caption").inner_text() == "Reduce-scatter around the ring, on 4 ranks"


def test_another_collective_begins_at_the_start(address: str, opened: Callable[..., Any]) -> None:
    page = opened()
    page.goto(f"{address}collectives.html#name=all-gather&ranks=3&step=2")
    page.wait_for_selector("#view th:has-text('after step 2')")
    page.get_by_label("collective").select_option("all-reduce")
    page.wait_for_selector("#view caption:has-text('All-reduce')")
    assert shown_by(page) == words(
        content.draw_collective({("all-reduce", 3): traces.trace("all-reduce", 3)}, "all-reduce", 3)[0]
    )
    box = page.locator("#view .cell").first
    assert box.evaluate("box => getComputedStyle(box).backgroundImage").startswith("linear-gradient(90deg, rgb(")
