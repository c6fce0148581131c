"""What stands on pages next to the data that it is made from, which is read here in another way."""

import ast
import importlib
import json
import re
import tomllib
from html import unescape
from pathlib import Path
from pkgutil import iter_modules

import pytest

from minidist import papers
from minidist.claims import counted
from minidist.contents import CHAPTERS
from minidist.papers.figure import Figure, plain
from minidist.site import annotate, changes, content, home
from minidist.site.forms import PAGES
from minidist.site.sources import Sources

PACKAGE = Path(annotate.__file__).parents[1]
CLONE = PACKAGE.parent
NAMES = [entry.name for entry in CHAPTERS]
PLACES = ("https://arxiv.org/abs/", "https://doi.org/10.", "https://www.usenix.org/", "https://proceedings.neurips.cc/")


def rows_of(table: str) -> list[list[str]]:
    """Cells of each row of a table in MyST, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def known_figures() -> list[tuple[str, Figure]]:
    """By the names of the papers' modules."""
    names = [one.name for one in iter_modules(papers.__path__)]
    modules = [importlib.import_module(f"minidist.papers.{name}") for name in names]
    return [(name, one) for name, module in zip(names, modules, strict=True) for one in getattr(module, "FIGURES", [])]


def test_the_table_has_every_figure() -> None:
    """With its paper, place, number, formula and evidence. ✓: what comes out is what is printed, or the bounds have it
    between them. ✗: the paper disagrees with itself, and the reason follows. What nothing comes out of says why."""
    on_ranks = {id(one): one for job in counted.JOBS for one, _ in job.gives}
    values = {at: one.value for at, one in [*on_ranks.items()][::2] if one.value is not None}  # as if counted
    shown = content.figures(values)
    rows = re.findall(r'<tr data-paper="(.*?)" data-evidence="(.*?)" data-kinds="(.*?)"(.*?)>(.*?)</tr>', shown)
    known = known_figures()
    assert len(rows) == len(known) > 500
    for (paper, evidence, kinds, hidden, row), (name, figure) in zip(rows, known, strict=True):
        cells = [unescape(cell) for cell in re.findall("<td>(.*?)</td>", row)]
        assert kinds.split() == ["misprints"] * bool(figure.differs) + ["on-ranks"] * (id(figure) in on_ranks)
        assert ("hidden" in hidden) == (not figure.differs)  # it opens on the misprints
        assert (paper, unescape(evidence)) == (name, figure.evidence)
        number = f"{figure.printed} {figure.unit}".strip()
        assert cells[:4] == [name, figure.source, figure.cell, number]
        assert cells[5:] == [figure.differs, figure.formula, figure.evidence]
        sign = ""
        if figure.value is None:
            assert cells[4] == ("(not counted)" if id(figure) in on_ranks else "(measured by the authors)")
        else:
            out, sign, how = re.fullmatch(r"(.*?) ([✓✗])( on ranks)?", cells[4]).groups()  # type: ignore[union-attr]
            assert out == figure.rounded(figure.value)
            assert bool(how) == (id(figure) in values)
            ends = [plain(figure.rounded(end)) for end in figure.bounds or ()]
            agrees = ends[0] <= plain(figure.printed) <= ends[1] if ends else out == figure.printed
            assert sign == "✗✓"[agrees]
        assert figure.differs or sign != "✗"


# ---- chapters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_a_change_are_two_methods(name: str) -> None:
    """Read from the files of the two classes: the lines of the left column and of the right one, in order. Unmarked
    lines are the same on both sides."""
    for change in changes.changes(name):
        before, after = change.where and change.where.split(": "), (name, change.name)
        shown = changes.as_html([change])
        lines = re.findall("<div>(.*?)</div>", shown)
        rows = [re.findall(r'<code class="(.*?)".*?>(.*?)</code>', line) for line in lines]
        columns = [[row[side] for row in rows] for side in ((0, 1) if before else (0,))]
        read = [[text_of(line) for kind, line in column if kind != "none"] for column in columns]
        assert read == [method_in(*where) for where in (before, after) if where]
        if before:
            kept = [[text for kind, text in column if kind in ("", "same")] for column in columns]
            assert kept[0] == kept[1]
            assert {kind for kind, _ in columns[0]} <= {"", "del", "none"}
            assert {kind for kind, _ in columns[1]} <= {"same", "ins", "none"}


def text_of(line: str) -> str:
    return unescape(re.sub("<.*?>", "", line)).rstrip()


def method_in(module: str, name: str) -> list[str]:
    """A method's lines without its docstring, as its file has them."""
    path = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    lines, (kind, method) = path.read_text().splitlines(), name.split(".")
    [found] = [
        part
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == kind
        for part in node.body
        if isinstance(part, ast.FunctionDef) and part.name == method
    ]
    first = min([found.lineno, *(mark.lineno for mark in found.decorator_list)])
    note = found.body[0] if ast.get_docstring(found) else None
    hidden = range(note.lineno, (note.end_lineno or 0) + 1) if note else ()
    own = [lines[i - 1][4:].rstrip() for i in range(first, (found.end_lineno or 0) + 1) if i not in hidden]
    return own or [""]


@pytest.mark.parametrize("name", NAMES)
def test_a_chapter_shows_its_run_and_its_mutants(name: str) -> None:
    page = content.chapter(name, "what it printed", PAGES)
    assert page.count("## A run\n\nwhat it printed\n") == 1
    file = PACKAGE / "claims" / "mutants" / f"{name}.toml"
    mutants = tomllib.loads(file.read_text())["mutant"] if file.exists() else []
    expected = [[mutant["mistake"], "; ".join(mutant["caught_by"])] for mutant in mutants]
    assert rows_of(page.partition("## Broken programs")[2]) == expected


@pytest.mark.parametrize("name", [name for name in NAMES if name != "train"])  # which has no paper
def test_a_chapter_leads_to_its_papers(name: str) -> None:
    page = content.chapter(name, "", PAGES).partition("## The code")[0]
    assert any(f'href="{place}' in page for place in PLACES)


def test_a_chapter_leads_to_what_a_reader_may_play_with() -> None:
    """If there is no page that computes, only to the collectives, which are recorded."""
    for pages, shown in ((PAGES, {page.name for page in PAGES}), ([], set())):
        links = {name: re.findall(r"\(\.\./(\w+)\.md\)", content.chapter(name, "", pages)) for name in NAMES}
        assert {page for of in links.values() for page in of} == {"collectives", *shown}
        assert links["ring"] == ["collectives"]
        assert links["pipeline"] == ["schedules"] * bool(pages)


def test_a_section_is_a_part_of_the_link() -> None:
    text = "See arXiv 1910.02054,\nsection 5.3. And doi 10.1016/j.jpdc.2008.09.002 (x), https://a.org/b-c."
    shown = annotate.prose(text)
    assert re.findall('<a href="(.*?)">(.*?)</a>', shown, re.DOTALL) == [
        ("https://arxiv.org/abs/1910.02054", "arXiv 1910.02054,\nsection 5.3"),
        ("https://doi.org/10.1016/j.jpdc.2008.09.002", "doi 10.1016/j.jpdc.2008.09.002"),
        ("https://a.org/b-c", "https://a.org/b-c"),
    ]


def test_the_table_of_chapters() -> None:
    rows = rows_of(content.table_of_chapters())
    assert rows == [[f"[{name}]({name}.md)", paper, f"`{launch}`"] for name, paper, launch in CHAPTERS]


def test_the_table_of_rooms() -> None:
    rooms = ["minidist/README.md", "minidist/pp/README.md", "minidist/classroom/TEACHING.md"]
    titles = ["A map of the code", "Pipelines", "Teaching with the lessons"]
    folders = ["minidist/", "minidist/pp/", "minidist/classroom/"]
    rows = [[f"[{title}]({room})", f"`{folder}`"] for title, room, folder in zip(titles, rooms, folders, strict=True)]
    for row, module in zip(rows, ("minidist", "minidist.pp"), strict=False):  # what a README is about, its room says
        row.append((importlib.import_module(module).__doc__ or "").partition("\n")[0])
    assert rows_of(content.table_of_rooms(rooms)) == rows


def test_the_home_page_shows_the_way() -> None:
    """Each page that computes, the commands of the Makefile, and a start for each kind of reader."""
    page = home.text(PAGES)
    for name in ("memory", "schedules", "plan", "collectives"):
        assert page.count(f"]({name}.md)") == 1 + (name == "memory")
        assert f"]({name}.md)" not in home.text([]) or name == "collectives"
    targets = re.findall(r"^([a-z-]+):", (CLONE / "Makefile").read_text(), re.MULTILINE)
    commands = re.findall(r"^make ([a-z-]+)", page, re.MULTILINE)
    assert commands == ["demo"]
    assert {*commands} <= {*targets}
    assert {"an engineer", "learning on your own", "a teacher"} <= {row[0] for row in rows_of(page)}


@pytest.mark.parametrize(
    ("name", "lessons"), [("ring", ["04"]), ("zero3", ["09"]), ("infinity", ["11"]), ("train", [])]
)
def test_a_chapter_leads_to_its_lessons(name: str, lessons: list[str]) -> None:
    """And to the notebook of that number."""
    assert re.findall(r"\[Lesson (\d+): [^]]*\]\(../lessons/\1_\w+/lesson.ipynb\)", content.lessons_of(name)) == lessons


def test_the_one_text_has_the_readme_and_every_chapter() -> None:
    text = content.one_text()
    files = [CLONE / "README.md", *(PACKAGE / f"{name}.py" for name in NAMES)]
    places = [text.index(file.read_text()) for file in files]
    assert places[0] == 0
    assert places == sorted({*places})


def test_a_lesson_keeps_its_code_and_its_outputs(tmp_path: Path) -> None:
    """What is shown is the notebook of the clone, with links that lead to pages, and a note that it is not run here."""
    sources, notebooks = Sources(tmp_path), sorted(CLONE.glob("lessons/*/lesson.ipynb"))
    assert len(notebooks) == 20
    for notebook in notebooks:
        own = json.loads(notebook.read_text())["cells"]
        shown = json.loads(sources.relink_notebook(str(notebook.relative_to(CLONE))))["cells"]
        assert "make lessons" in shown.pop(1)["source"]
        assert len(shown) == len(own)
        assert [cell for cell in shown if cell["cell_type"] == "code"] == [one for one in own if "outputs" in one]
