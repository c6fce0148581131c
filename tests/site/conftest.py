"""The pages, built, served, and opened in Chromium of the system, which playwright drives (`make site-test`)."""

import contextlib
import functools
import http.server
import importlib.util
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

KEPT = Path(__file__).parents[2] / "build" / "site" / "recordings"  # by `make site`
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WANTED = ("sphinx", "myst_nb", "furo", "latex2mathml", "playwright")
FLAGS = (  # Chromium as root, on a machine without other hosts
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def missing() -> str:
    """What these tests need, and do not find."""
    packages = [name for name in WANTED if not importlib.util.find_spec(name)]
    return ", ".join([*packages, *(["Chromium"] if not CHROMIUM else [])])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if missing():
        terminalreporter.write_line(f"The pages were not opened in a browser: that needs {missing()}.")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with contextlib.suppress(ConnectionError):  # the browser has left the page
            super().copyfile(source, outputfile)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder of pages. With -m slow, chapters run, and their pages show what they print; what `make site` has
    recorded of the same code is not run again."""
    if missing():
        pytest.skip(f"needs {missing()}: make site-test")
    from minidist.site.build import build

    folder = tmp_path_factory.mktemp("site")
    if KEPT.exists():
        shutil.copytree(KEPT, folder / "work" / "recordings")
    build(folder / "pages", folder / "work", ran=request.config.getoption("-m") != "not slow")
    return folder / "pages"


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("localhost", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="session")
def browser(site: Path) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens pages that note what goes wrong: errors on the console, and requests to other hosts."""
    wrong, contexts = list[str](), list[Any]()

    def open_page(**how: Any) -> Any:
        contexts.append(browser.new_context(**how))
        page = contexts[-1].new_page()
        page.on("console", lambda said: wrong.append(f"{page.url}: {said.text}") if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
        page.on("request", lambda asked: wrong.append(f"{page.url} asks for {asked.url}") if elsewhere(asked) else None)
        return page

    def elsewhere(asked: Any) -> bool:
        return not asked.url.startswith((address, "data:", "blob:"))

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong, "\n".join(wrong)
