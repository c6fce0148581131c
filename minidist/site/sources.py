"""The folder of sources: the same tree as the clone, so that links between notebooks and READMEs hold."""

import json
import posixpath
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from minidist.claims.papers import count, library
from minidist.contents import CHAPTERS
from minidist.site import content, forms, home, runs, traces
from minidist.site.content import CLONE, HERE, PACKAGE
from minidist.site.kept import Recordings

NAMED = re.compile(r"`site/(\w+)\.html`")  # a page that texts name without a link, because a clone may have no pages
LINK = re.compile(r"(\]\(|<(?:a href|img src)=\")(?![a-z]+:|#)([^)#\"]+)(#[^)\"]*)?")
CODE = re.compile(r"<code>([\w/]+\.py)</code>")
NOTE = "*This page shows the notebook with its outputs. To work in it, type* `make lessons` *in a clone.*"
OUR_OWN = (  # pages that are no files of the clone
    *("chapters/", "papers.md", "collectives.md", "lessons/index.md", "changelog.md", "minidist.md"),
    *(f"{page.name}.md" for page in forms.PAGES),
)


def say(what: str) -> None:
    """What the build is doing, as soon as it begins."""
    print(f"minidist: {what}", flush=True)


class Sources:
    """The sources that Sphinx reads."""

    def __init__(self, folder: Path, kept: Recordings | None = None) -> None:
        """kept: what earlier builds have recorded; without it, nothing runs."""
        self.folder, self.kept = folder.resolve(), kept
        self.pages: Sequence[forms.Page] = forms.PAGES  # those that compute
        self.shown = {f"minidist/{entry.name}.py": f"chapters/{entry.name}.md" for entry in CHAPTERS}  # file, its page

    def lay_out(self, computes: bool, recorded: traces.Traces) -> None:
        """Write all sources. computes: include the pages that compute; recorded: the collectives."""
        pages = self.pages = forms.PAGES if computes else []
        lessons = sorted(str(path.parent.relative_to(CLONE)) for path in CLONE.glob("lessons/*/lesson.ipynb"))
        for lesson in lessons:
            self.write(f"{lesson}/lesson.ipynb", self.relink_notebook(f"{lesson}/lesson.ipynb"))
        self.write("lessons/index.md", self.relink("lessons/README.md"), [f"../{lesson}/lesson" for lesson in lessons])
        rooms = sorted(str(path.relative_to(CLONE)) for path in PACKAGE.rglob("*.md") if HERE not in path.parents)
        for room in rooms:
            self.write(room, self.relink(room))
        for i, entry in enumerate(CHAPTERS, start=1):
            page = content.chapter(entry.name, self.run(entry.name, i), pages)
            self.write(f"chapters/{entry.name}.md", self.link_code(page, "chapters"))
        self.write("chapters/index.md", content.table_of_chapters(), [entry.name for entry in CHAPTERS])
        self.write("papers.md", content.figures(self.count_figures()))
        for computing in pages:
            self.write(f"{computing.name}.md", content.computing(computing))
        self.write("collectives.md", content.collectives(recorded))
        self.write("changelog.md", f"---\nnosearch: true\n---\n\n{self.relink('CHANGELOG.md')}")
        self.write("rooms.md", content.table_of_rooms(rooms), [room.removesuffix(".md") for room in rooms])
        tops = [
            "chapters/index",
            "lessons/index",
            *(one.name for one in pages),
            "collectives",
            "papers",
            "rooms",
            "changelog",
        ]
        self.write("index.md", self._relinked(home.text(pages), ""), tops)
        for path, shown in [*self.shown.items()]:  # all links have been seen by now
            if not shown.startswith("chapters/"):
                self.write(shown, content.source(path))

    def write(self, path: str, text: str, below: Iterable[str] = ()) -> None:
        """Write a page's source. below: the pages under it in the tree."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        tree = ["", "", "```{toctree}", ":hidden:", *below, "```", ""] if below else [""]
        target.write_text(text + "\n".join(tree))

    def run(self, name: str, number: int) -> str:
        """Run a chapter, unless it is known what it prints; returns that, with its pictures."""
        if not self.kept:
            return ""
        (self.folder / "chapters").mkdir(parents=True, exist_ok=True)
        say(f"chapter {number} of {len(CHAPTERS)}: {name}")
        parts = []
        for ran in runs.record_chapter(name, self.folder / "chapters", self.kept):
            parts.append(f"```text\n$ {ran.command}\n{ran.printed.strip()}\n```")
            parts += [f"![Drawn by the command above]({ran.picture.name})"] if ran.picture else []
        return "\n\n".join(parts)

    def count_figures(self) -> dict[int, float]:
        """What ranks count of the papers' figures, by their ids, unless it is known already."""
        if not self.kept:
            return {}
        say("figures of papers, counted on ranks")
        figures = [figure for paper in library().values() for figure in paper.figures]

        def made() -> list[float | None]:
            values = count([*library().values()])
            return [values.get(id(figure)) for figure in figures]

        values = self.kept.recall("figures of papers", made)
        return {id(figure): value for figure, value in zip(figures, values, strict=True) if value is not None}

    # ---- links ------------------------------------------------------------------------------------------------------

    def relink(self, path: str) -> str:
        """A file's text, with links that lead to pages."""
        return self._relinked((CLONE / path).read_text(), posixpath.dirname(path))

    def relink_notebook(self, path: str) -> str:
        notebook = json.loads((CLONE / path).read_text())
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = self._relinked("".join(cell["source"]), posixpath.dirname(path))
        note = f"{NOTE} {content.played_with(path, self.pages)}".strip()
        notebook["cells"].insert(1, {"cell_type": "markdown", "id": "note", "metadata": {}, "source": note})
        return json.dumps(notebook)

    def link_code(self, page: str, folder: str) -> str:
        """Link the files that a page's docstrings name to their pages. folder: the page's own."""

        def lead(found: re.Match[str]) -> str:
            path = found[1] if "/" in found[1] else f"minidist/{found[1]}"  # a chapter names another one
            if not (CLONE / path).is_file():
                return found[0]
            target = posixpath.relpath(self.page_of(path), folder).removesuffix(".md")
            return f'<a href="{target}.html">{found[0]}</a>'

        return CODE.sub(lead, page)

    def _relinked(self, text: str, folder: str) -> str:
        def lead(found: re.Match[str]) -> str:
            before, target, anchor = found[1], found[2], found[3] or ""
            page = self.page_of(posixpath.normpath(posixpath.join(folder, target)))
            return f"{before}{posixpath.relpath(page, folder)}{anchor}"

        named = NAMED.sub(lambda found: f"[{found[0]}]({posixpath.relpath(f'{found[1]}.md', folder)})", text)
        return LINK.sub(lead, named)

    def page_of(self, path: str) -> str:
        """The page that shows a file or a folder of the clone. A picture is copied to the sources."""
        if path.startswith(OUR_OWN):
            return path
        if (CLONE / path / "README.md").exists():
            path = posixpath.join(path, "README.md")
        at = CLONE / path
        if path in ("README.md", "lessons/README.md", "CHANGELOG.md"):
            return path.replace("README", "index").lower()
        if at.suffix in (".svg", ".png"):
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (runs.shrink if at.suffix == ".png" else shutil.copy)(at, self.folder / path)
            return path
        if at.suffix in (".md", ".ipynb") and (PACKAGE in at.parents or at.suffix == ".ipynb"):
            return path
        return self.shown.setdefault(path, f"source/{path}.md")


# ---- the file of the clone that a page is made from, for a reader who wants to change it -----------------------------

MADE_FROM = {
    "index": "minidist/site/home.md",
    "chapters/index": "minidist/contents.py",
    "lessons/index": "lessons/README.md",
    "changelog": "CHANGELOG.md",
    "papers": "minidist/claims/papers.py",
    "collectives": "minidist/site/collectives.toml",
    "rooms": "minidist/site/content.py",
    **{page.name: "minidist/site/pages.toml" for page in forms.PAGES},
}


def file_of(page: str) -> str:
    """The file of the clone that a page is made from, "" if there is none."""
    if page.startswith("source/"):
        return page.removeprefix("source/")
    if page.startswith("chapters/") and page not in MADE_FROM:
        return f"minidist/{posixpath.basename(page)}.py"
    files = (MADE_FROM.get(page, ""), f"{page}.ipynb", f"{page}.md")
    return next((file for file in files if file and (CLONE / file).exists()), "")
