"""All pages in a real browser: links, sizes, errors, widths, accessibility (`make site-test`)."""

import re
from collections.abc import Callable, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import pytest

from minidist.claims import counted
from minidist.claims.papers import library
from minidist.site import browser_python, home

LARGEST = 300_000  # bytes of a page with all that it shows, without notebooks' outputs and without Python
AXE = "axe-core@4.10.2"
WIDTHS = (390, 1280, 1920)
BETWEEN = (820, 1366, 1600)  # where columns have just come, or are about to
OF_CODE = "source/"  # pages that are made alike
KINDS = [  # one page of each
    *("index", "chapters/index", "chapters/zero2", "chapters/pipeline", "lessons/index"),
    *("lessons/04_ring_all_reduce/lesson", "memory", "schedules", "plan", "collectives", "papers", "rooms"),
    *("changelog", "minidist/README", "source/minidist/nn/flat.py", "search"),
]


def pages_of(site: Path) -> list[str]:
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


class Links(HTMLParser):
    """What a page leads to, and the places in it that links may name."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets, self.places = list[str](), set[str]()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.places |= {found[key] or "" for key in ("id", "name") if key in found}
        self.targets += [found[key] or "" for key in ("href", "src") if key in found]


def test_no_link_is_broken(site: Path) -> None:
    pages = {name: Links(site / name) for name in pages_of(site)}
    broken = []
    for page, links in pages.items():
        for target in links.targets:
            path, place = urldefrag(urljoin(f"https://here/{page}", target))
            if not path.startswith("https://here/") or target.startswith("data:"):
                continue
            file = unquote(path.removeprefix("https://here/").split("?")[0]) or "index.html"
            if not (site / file).exists() or (place and file in pages and unquote(place) not in pages[file].places):
                broken.append(f"{page}: {target}")
    assert not broken


CUT_OFF = """width => [...document.querySelectorAll("input, select, button, img, svg, table, p")].filter(one => {
    if (one.closest('.sidebar-drawer, .toc-drawer') || one.getBoundingClientRect().right <= width + 1) return false;
    for (let around = one; around; around = around.parentElement)
        if (['auto', 'scroll'].includes(getComputedStyle(around).overflowX)) return false;
    return true;
}).map(one => one.outerHTML.slice(0, 80))"""


def test_pages_open_at_every_width(site: Path, address: str, opened: Callable[..., Any]) -> None:
    """On a phone, a laptop and a large screen: a heading, no error, nothing from another host, no page wider than the
    window. Pages of code, which are made alike, on a phone alone. In between, a page of each kind."""
    wrong, every = [], pages_of(site)
    for width in sorted(WIDTHS + BETWEEN):
        page = opened(viewport={"width": width, "height": 900})
        larger = [name for name in every if not name.startswith(OF_CODE)]
        for name in every if width == 390 else larger if width in WIDTHS else [f"{kind}.html" for kind in KINDS]:
            page.goto(address + name)
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wrong.append(f"{name} is wider than {width} pixels")
            if page.locator("h1").count() != 1:
                wrong.append(f"{name} has no heading")
            wrong += [f"{name} at {width} pixels cuts off {part}" for part in page.evaluate(CUT_OFF, width)]
    assert not wrong


def test_figures_are_filtered(address: str, opened: Callable[..., Any]) -> None:
    """It opens on the misprints. By kind, by paper, by evidence, by words of a section; the address holds the choice,
    and counts say what is left."""
    page = opened()
    page.goto(address + "papers.html")
    every = [(name, figure) for name, paper in library().items() for figure in paper.figures]

    def shown() -> list[str]:
        rows = page.locator("#figures tbody tr:not([hidden])")
        assert page.locator("#count").inner_text().partition(":")[0] == f"{rows.count()} of {len(every)} figures"
        return [words.replace("\t", " ") for words in rows.locator("td:nth-child(3)").all_inner_texts()]

    assert shown() == [figure.cell for _, figure in every if figure.differs] != []
    on_ranks = {id(figure) for job in counted.JOBS for figure, _ in job.gives}
    page.get_by_label("counted on ranks").check()
    assert shown() == [figure.cell for _, figure in every if id(figure) in on_ranks]
    page.go_back()
    assert page.get_by_label("misprints").is_checked()
    page.get_by_label(f"all {len(every)}").check()
    assert len(shown()) == len(every)
    page.locator("[name=paper]").select_option("zero")
    assert shown() == [figure.cell for name, figure in every if name == "zero"]
    page.get_by_role("searchbox").fill("P_os+g+p table")
    found = [one.cell for name, one in every if name == "zero" and "P_os+g+p" in one.cell and "Table" in one.source]
    assert shown() == found != []
    page.reload()
    assert shown() == found
    page.locator("[name=paper]").select_option("all")
    page.get_by_role("searchbox").fill("")
    page.locator("[name=evidence]").select_option("code")
    assert shown() == [figure.cell for _, figure in every if figure.evidence == "code"] != []


BOXES = """() => [...document.querySelectorAll('.piece')].filter(one => one.querySelector('.note')).map(one =>
    ['.code', '.note', '.note p'].map(part => one.querySelector(part).getBoundingClientRect().toJSON()))"""


def test_code_comes_first_and_notes_open_next_to_it(address: str, opened: Callable[..., Any]) -> None:
    """On a phone below the code, on a laptop right of it; on a large screen all are open, left of it."""
    for width in (390, 1280, 1920):
        page = opened(viewport={"width": width, "height": 900})
        page.goto(f"{address}chapters/zero3.html")
        notes = page.locator("details.note")
        assert [note.get_attribute("open") is not None for note in notes.all()] == [width == 1920] * notes.count()
        if width < 1920:
            code, note, _ = page.evaluate(BOXES)[0]
            assert note["height"] < 30  # what it says is not in the way
            notes.first.locator("summary").click()
        code, note, text = page.evaluate(BOXES)[0]
        assert text["height"] > 0
        if width == 390:
            assert text["top"] >= code["bottom"]
        else:
            left, right = (code, note) if width == 1280 else (note, code)
            assert left["right"] <= right["left"]
            assert abs(code["top"] - note["top"]) < 30
        if width < 1920:
            page.get_by_role("button", name="Open all notes").click()
            assert all(note.get_attribute("open") is not None for note in notes.all())
            page.get_by_role("button", name="Close all notes").click()
            assert not any(note.get_attribute("open") is not None for note in notes.all())


def test_the_home_page_plays(address: str, opened: Callable[..., Any]) -> None:
    """Every model, number of ranks and stage shows its own bars; the address holds them, and Back undoes a change."""
    page = opened()
    page.goto(f"{address}index.html")

    def is_shown(model: str, n: int, stage: int) -> None:
        said = re.findall(r"<p>(.*?)</p>", home.draw_ladder(model, n)[stage])[-1]
        page.wait_for_function(
            "said => document.getElementById('view').innerText.includes(said)", arg=unescape(re.sub("<.*?>", "", said))
        )
        assert page.locator("#view svg g:not(.pale)").count() == 1

    is_shown("llama2-7b", 64, 3)
    page.get_by_label("ranks N").focus()
    page.keyboard.press("ArrowRight")
    is_shown("llama2-7b", 128, 3)
    page.get_by_label("ZeRO stage").focus()
    page.keyboard.press("ArrowLeft")
    is_shown("llama2-7b", 128, 2)
    page.get_by_label("model").select_option("llama3-405b")
    is_shown("llama3-405b", 128, 2)
    page.reload()
    is_shown("llama3-405b", 128, 2)
    for before in (("llama2-7b", 128, 2), ("llama2-7b", 128, 3), ("llama2-7b", 64, 3)):
        page.go_back()
        is_shown(*before)
    page.goto(f"{address}index.html#model=gpt2-xl&dp=3&zero=1")
    is_shown("gpt2-xl", 64, 1)
    said = page.locator(".refused.address").inner_text()
    assert said == "The address asks for what cannot be. dp = 3: not a power of two from 1 to 1024; this page shows 64."


WITHOUT_LABEL = """() => [...document.querySelectorAll("main input, main select, main textarea")]
    .filter(field => !field.labels.length && !field.ariaLabel).map(field => field.outerHTML)"""


def test_each_field_has_its_label(address: str, opened: Callable[..., Any]) -> None:
    """A reader hears it, and may press it."""
    page = opened()
    for name in ("index", "memory", "schedules", "plan", "collectives", "papers", "search"):
        page.goto(f"{address}{name}.html")
        assert page.evaluate(WITHOUT_LABEL) == [], name


FOCUSED = """() => { // what has the focus, and whether a frame shows it
    const one = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(one);
    const framed = outlineStyle !== 'none' && parseFloat(outlineWidth) > 0;
    return [one.outerHTML.slice(0, 80), framed || one === document.body];
}"""


@pytest.mark.parametrize("name", ["schedules", "collectives"])
def test_the_focus_is_seen(name: str, address: str, opened: Callable[..., Any]) -> None:
    """The Tab key goes through the page, and what it has reached has a frame."""
    page, seen = opened(), list[tuple[str, bool]]()
    page.goto(f"{address}{name}.html")
    while len(seen) < 80 and not (seen and seen[-1][0].startswith("<body")):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUSED))
    assert any("<select" in one for one, _ in seen)
    assert [one for one, framed in seen if not framed] == []


PRESSED = ".skip-to-content, .sidebar-drawer, .toc-drawer, .buttons, #state, [type=range]"
PRINTED = """pressed => [...document.querySelectorAll(pressed)]
    .filter(one => one.checkVisibility()).map(one => one.outerHTML.slice(0, 80))"""


def test_print_has_the_page_and_its_colors(address: str, opened: Callable[..., Any]) -> None:
    """Without what a reader presses; and what a color means is not lost."""
    page = opened()
    page.emulate_media(media="print")
    for kind in KINDS:
        page.goto(f"{address}{kind}.html")
        assert page.evaluate(PRINTED, PRESSED) == [], kind
        colored = page.locator("#view .chip, #view .cell, .diff code").all()
        assert {one.evaluate("one => getComputedStyle(one).printColorAdjust") for one in colored[:3]} <= {"exact"}
        assert colored or kind not in ("chapters/zero2", "memory", "schedules", "collectives")


OUTPUTS = "new Blob([...document.querySelectorAll('.cell_output')].map(output => output.outerHTML)).size"
OF_A_NOTEBOOK = re.compile(r"_images/[0-9a-f]{64}\.")  # a picture that a cell has drawn


def test_pages_are_small(site: Path, address: str, opened: Callable[..., Any]) -> None:
    """All that a page loads, by the bytes of the files: its HTML, styles, scripts, pictures."""
    page, loaded, large = opened(), set[str](), []
    page.on("request", lambda asked: loaded.add(unquote(urldefrag(asked.url)[0].removeprefix(address).split("?")[0])))
    for name in pages_of(site):
        loaded.clear()
        page.goto(address + name, wait_until="load")
        files = {file for file in loaded if not file.startswith("pyodide/") and not OF_A_NOTEBOOK.match(file)}
        size = sum((site / file).stat().st_size for file in files | {name}) - page.evaluate(OUTPUTS)
        if size > LARGEST:
            large.append(f"{name}: {size:,} bytes")
    assert not large, "\n".join(large)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core's script."""
    folder = tmp_path_factory.mktemp("axe")
    assert not browser_python.fetch(AXE, folder)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


AXE_RUN = """contrast => axe.run({
    resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa"], rules: {"color-contrast": {enabled: contrast}},
})"""


def faults(page: Any, names: Sequence[str], axe: str, contrast: bool = True) -> set[str]:
    """Serious ones, by the rules of WCAG 2, A and AA."""
    found = set[str]()
    for name in names:
        page.goto(name)
        page.evaluate(axe)
        for fault in page.evaluate(AXE_RUN, contrast)["violations"]:
            if fault["impact"] in ("serious", "critical"):
                where = [node["target"] for node in fault["nodes"]][:2]
                found.add(f"{name}: {fault['id']} at {where}: {fault['help']}")
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_kind_of_page_has_a_serious_fault(scheme: str, address: str, opened: Callable[..., Any], axe: str) -> None:
    found = faults(opened(color_scheme=scheme), [f"{address}{kind}.html" for kind in KINDS], axe)
    assert not found, "\n".join(sorted(found))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_fault(
    scheme: str, site: Path, address: str, opened: Callable[..., Any], axe: str
) -> None:
    """Pages of code are measured without their colors, which are those of chapters: contrast takes axe a minute for
    ten pages."""
    page, names = opened(color_scheme=scheme), pages_of(site)
    found = faults(page, [f"{address}{name}" for name in names if not name.startswith(OF_CODE)], axe)
    found |= faults(page, [f"{address}{name}" for name in names if name.startswith(OF_CODE)], axe, contrast=False)
    assert not found, "\n".join(sorted(found))
