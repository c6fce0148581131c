"""The pages in a real browser: Chromium of the system, driven by playwright (`make site-test`)."""

import contextlib
import functools
import html
import http.server
import importlib.util
import json
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import pytest

from minidist.site import browser_python, compute, forms
from minidist.site.forms import PAGES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WANTED = ("sphinx", "myst_nb", "furo", "latex2mathml", "playwright")
NEEDED = [name for name in WANTED if not importlib.util.find_spec(name)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(NEEDED) or not CHROMIUM, reason=f"needs {', '.join(NEEDED) or 'Chromium'}: make site-test"),
]
LARGEST = 300_000  # bytes of a page, without notebooks' outputs
AXE = "4.10.2"  # axe-core's version
WIDTHS = (390, 1280, 1920)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with contextlib.suppress(ConnectionError):  # the browser has left the page
            super().copyfile(source, outputfile)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from minidist.site.build import build

    folder = tmp_path_factory.mktemp("site")
    build(folder / "pages", folder / "work", ran=False)
    return folder / "pages"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("localhost", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


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
    pages = {path.relative_to(site).as_posix(): Links(path) for path in site.rglob("*.html")}
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


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    """No script, style, picture or font of another host."""
    for path in site.rglob("*.html"):
        found = re.findall(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]+", path.read_text())
        assert not found, path


def test_pages_are_small(site: Path) -> None:
    for path in site.rglob("*.html"):
        if "lesson" not in path.name:
            assert path.stat().st_size < LARGEST, path


def test_every_page_opens_without_an_error(site: Path, address: str, browser: Any) -> None:
    """And none is wider than the window, on a phone, a laptop and a large screen."""
    wrong = []
    for width in WIDTHS:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        for path in sorted(site.rglob("*.html")):
            name = path.relative_to(site).as_posix()
            if "source/" in name and width != WIDTHS[0]:
                continue
            page.goto(address + name)
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wrong.append(f"{name} is wider than {width} pixels")
        page.close()
    assert not wrong


def drawn_settings(page: forms.Page, drawn: random.Random) -> dict[str, str]:
    """Random values of a page's form. A text keeps its value, or becomes one that its page is tried with."""
    found = {}
    for one in page.settings:
        if isinstance(one, forms.Choice):
            found[one.name] = drawn.choice(one.words)
        elif isinstance(one, forms.Slider):
            steps = round((min(one.most, one.least + 24 * one.step) - one.least) / one.step)
            found[one.name] = f"{one.least + drawn.randint(0, steps) * one.step:.10g}"
        elif isinstance(one, forms.Powers):
            most = min(one.most, one.least * 16)
            found[one.name] = str(2 ** drawn.randint(one.least.bit_length() - 1, most.bit_length() - 1))
        else:
            found[one.name] = drawn.choice(TEXTS.get(one.name, (one.value,)))
    return found


TEXTS = {
    "ranks": ("1", "2", "4", "6"),
    "batch": ("8K", "16K"),
    "device-memory": ("4GB", "16GB", "80GB"),
    "order": ("", "F1 B1", "F1 F2 B1 B2\nF1 B1 F2 B2"),
}
TRIED = {"memory": 120, "schedules": 60, "plan": 12}  # settings of each page
SET = """(wanted) => {
    const form = document.querySelector('form.compute');
    for (const [name, value] of Object.entries(wanted)) {
        const field = form.elements[name];
        field.value = 'powers' in field.dataset ? Math.log2(value) : value;
    }
    form.dispatchEvent(new Event('input'));
}"""
ANSWERED = "(before) => { const now = document.getElementById('view').dataset.number; return now && now !== before; }"


@pytest.mark.parametrize("computing", PAGES, ids=lambda page: page.name)
def test_pages_that_compute_say_what_the_project_says(computing: forms.Page, address: str, browser: Any) -> None:
    """Random settings in the browser, next to the same function here; and the address holds them: opened once more, it
    shows the same."""
    page, drawn = browser.new_page(), random.Random(2)
    page.goto(f"{address}{computing.name}.html")
    page.wait_for_function(ANSWERED, arg="", timeout=120_000)
    assert shown_by(page) == text_of(computing, computing.first())
    took = []
    for i in range(TRIED[computing.name]):
        settings = drawn_settings(computing, drawn) if i else computing.first()
        before = page.evaluate("document.getElementById('view').dataset.number")
        page.evaluate(SET, settings)
        page.wait_for_function(ANSWERED, arg=before, timeout=120_000)
        assert shown_by(page) == text_of(computing, settings), settings
        took.append(int(page.evaluate("document.getElementById('view').dataset.took")))
    print(f"\n{computing.name}: {took[0]} ms at default settings, at most {max(took)} ms")
    again = browser.new_page()
    again.goto(page.url)
    again.wait_for_function(ANSWERED, arg="", timeout=120_000)
    assert shown_by(again) == text_of(computing, settings)
    again.close()
    page.close()


def shown_by(page: Any) -> list[str]:
    return str(page.evaluate("document.getElementById('view').textContent")).split()


def text_of(page: forms.Page, settings: dict[str, str]) -> list[str]:
    return html.unescape(re.sub(r"<[^>]*>", "", compute.answer(page.name, json.dumps(settings)))).split()


def test_no_serious_accessibility_fault(address: str, browser: Any, site: Path, tmp_path: Path) -> None:
    """axe-core's rules of WCAG 2, A and AA: all pages at the top, in light and in dark, and a part of the others, which
    are made in the same ways."""
    npm = browser_python.find_npm()
    assert npm
    command = [npm, "install", "--prefix", str(tmp_path), "--no-save", "--silent", f"axe-core@{AXE}"]
    subprocess.run(command, check=True, capture_output=True)
    axe = (tmp_path / "node_modules" / "axe-core" / "axe.min.js").read_text()
    top = sorted(path.name for path in site.glob("*.html"))
    others = sorted(path.relative_to(site).as_posix() for path in site.glob("*/**/*.html"))
    faults = set[str]()
    for scheme, pages in (("light", top + others[::12]), ("dark", top)):
        page = browser.new_page(color_scheme=scheme)
        for name in pages:
            page.goto(address + name)
            page.evaluate(axe)
            found = page.evaluate("axe.run({resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa']})")
            for fault in found["violations"]:
                if fault["impact"] in ("serious", "critical"):
                    where = [node["target"] for node in fault["nodes"]][:2]
                    faults.add(f"{name} ({scheme}): {fault['id']} at {where}: {fault['help']}")
        page.close()
    assert not faults, "\n".join(sorted(faults))


def test_collectives_play_what_was_recorded(site: Path, address: str, browser: Any) -> None:
    """Step by step, every rank's chunks, messages and bytes, as the file next to the page has them."""
    recorded = json.loads((site / "collectives.json").read_text())["collectives"]
    page = browser.new_page()
    for name, n in (("reduce-scatter", "4"), ("all-to-all", "3"), ("recursive-doubling", "5")):
        run = recorded[name]["ranks"][n]
        page.goto(f"{address}index.html")
        page.goto(f"{address}collectives.html#name={name}&ranks={n}&step=0")
        page.wait_for_selector("#view tbody")
        for step in range(len(run["messages"]) + 1):
            for rank, row in enumerate(page.query_selector_all("#view tbody tr")):
                holds, sends, nbytes = (cell.inner_text().split() for cell in row.query_selector_all("td"))
                assert holds == [str(item[0]) if item else "·" for item in run["held"][rank][step]]
                ahead = [sent for later in run["messages"][step : step + 1] for sent in later if sent[0] == rank]
                assert sends == [word for _, dest, items, _ in ahead for word in
                                 [*(str(chunk) for chunk, _ in items), "to", "rank", str(dest)]]  # fmt: skip
                done = sum(sent[3] for earlier in run["messages"][:step] for sent in earlier if sent[0] == rank)
                assert nbytes == [str(done)]
            page.click("text=Next")
    page.close()
