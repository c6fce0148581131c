"""The pages in a real browser: Chromium of the system, driven by playwright (`make site-test`)."""

import functools
import http.server
import importlib.util
import json
import random
import re
import shutil
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import pytest

from minidist.site import compute
from minidist.site.forms import FLUSHING, PAGES, SCHEDULES_PAGE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WANTED = ("sphinx", "myst_nb", "furo", "latex2mathml", "playwright")
NEEDED = [name for name in WANTED if not importlib.util.find_spec(name)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(NEEDED) or not CHROMIUM, reason=f"needs {', '.join(NEEDED) or 'Chromium'}: make site-test"),
]
LARGEST = 300_000  # bytes of a page, without notebooks' outputs
WIDTHS = (390, 1280, 1920)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


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


def test_pages_that_compute_say_what_the_project_says(address: str, browser: Any) -> None:
    """Random settings in the browser, next to the same function here."""
    if not any(page.name == "schedules" for page in PAGES):
        pytest.skip("no such page")
    page, drawn = browser.new_page(), random.Random(2)
    page.goto(f"{address}schedules.html")
    page.wait_for_function("document.getElementById('view').dataset.number", timeout=120_000)
    for _ in range(50):
        settings = SCHEDULES_PAGE.first() | {"first": drawn.choice(FLUSHING), "second": drawn.choice(FLUSHING)}
        settings |= {
            "p": str(drawn.randint(1, 8)),
            "m": str(drawn.randint(1, 24)),
            "F": f"{drawn.randint(1, 30) / 10:g}",
        }
        before = page.evaluate("document.getElementById('view').dataset.number")
        page.evaluate(
            "(wanted) => { const form = document.querySelector('form.compute');"
            " for (const [name, value] of Object.entries(wanted)) form.elements[name].value = value;"
            " form.dispatchEvent(new Event('input')); }",
            settings,
        )
        page.wait_for_function("(n) => document.getElementById('view').dataset.number !== n", arg=before)
        shown = page.evaluate("document.getElementById('view').textContent")
        expected = re.sub(r"<[^>]*>", "", compute.answer("schedules", json.dumps(settings)))
        assert shown.split() == expected.replace("&amp;", "&").split(), settings
    page.close()
