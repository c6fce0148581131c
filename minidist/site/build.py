"""Lays out the sources of the pages from what exists, and makes the pages from them."""

import json
import re
import shutil
import sys
from pathlib import Path

from minidist import UsageError
from minidist.site import browser_python, content, home, traces
from minidist.site.kept import Recordings
from minidist.site.sources import Sources, say
from minidist.system import processes

HERE = Path(__file__).parent


def build(pages: Path, work: Path, ran: bool = True) -> None:
    """Lay out the sources, and let Sphinx make the pages. work: a folder for this alone, which keeps what runs have
    given; ran: run the chapters, too. Raises UsageError if a page cannot be made."""
    sources, made, npm = work / "sources", work / "pages", work / "npm"  # MyST-NB leaves a folder next to `made`
    for old in (sources, made, work / "doctrees"):
        shutil.rmtree(old, ignore_errors=True)
    say("Python for the pages that compute")
    without_python = browser_python.fetch(browser_python.PYODIDE, npm)
    if without_python:
        print(f"minidist: the pages that compute are left out: {without_python}")
    say("collectives, recorded on ranks")
    recorded, kept = traces.all_traces(), Recordings(work / "recordings") if ran else None
    Sources(sources, kept).lay_out(computes=not without_python, recorded=recorded)
    if kept:
        kept.forget_others()
    say(f"{len([*sources.rglob('*.md'), *sources.rglob('*.ipynb')])} pages, by Sphinx")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", str(HERE)]
    if processes.run([*command, "-d", str(work / "doctrees"), str(sources), str(made)]).returncode:
        raise UsageError("Sphinx could not make all pages: it says above which")
    for style in made.rglob("*.css"):
        style.write_text(squeeze(style.read_text()))
    (made / "minidist.md").write_text(content.one_text())
    (made / "collectives").mkdir()
    for name, ranks in recorded:
        views = content.draw_collective(recorded, name, ranks)
        (made / "collectives" / f"{name}-{ranks}.json").write_text(json.dumps(views))
    (made / "ladder").mkdir()
    for name, views in home.ladder_files():
        (made / "ladder" / name).write_text(json.dumps(views))
    if not without_python:
        browser_python.install(made / "pyodide", npm)
    shutil.rmtree(pages, ignore_errors=True)
    shutil.move(made, pages)


def squeeze(style: str) -> str:
    """CSS without comments and indentation."""
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL))
