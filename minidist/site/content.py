"""The content of the pages: MyST, made from docstrings, code, figures and mutants."""

import html
import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import minidist
from minidist.claims.mutants import mutants_of
from minidist.claims.papers import Recounted, library, outcomes
from minidist.contents import CHAPTERS
from minidist.papers.figure import Evidence
from minidist.site import annotate, changes, compute, forms, traces
from minidist.site.views.collectives import draw_steps, name_colors

PACKAGE = Path(minidist.__file__).parent
CLONE = PACKAGE.parent
HERE = Path(__file__).parent


def raw(text: str) -> str:
    """HTML that MyST passes on unchanged."""
    return f"```{{raw}} html\n{text}\n```" if text else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def home(computing: Sequence[forms.Page]) -> str:
    """The first page. computing: the pages that compute, if there are any, to which it links."""
    links = [
        *(f"[{page.title.rstrip('?').lower()}]({page.name}.md)" for page in computing),
        "[collectives](collectives.md)",
    ]
    return (HERE / "home.md").read_text().replace("{computing}", ", ".join(links))


# ---- chapters and code -----------------------------------------------------------------------------------------------


def table_of_chapters() -> str:
    rows = [(f"[{entry.name}]({entry.name}.md)", entry.paper, f"`{entry.launch}`") for entry in CHAPTERS]
    return "# The chapters\n\n" + table(("chapter", "based on", "run it"), rows)


def table_of_rooms(paths: Sequence[str]) -> str:
    """The table of rooms that have a page. paths: their texts in the clone."""
    rows = []
    for path in paths:
        title, folder = (CLONE / path).read_text().partition("\n")[0].removeprefix("# "), posixpath.dirname(path)
        room, about = CLONE / folder / "__init__.py", ""
        if path.endswith("README.md") and room.exists():
            document, _ = annotate.take_apart(room)
            about = document.partition("\n")[0].removesuffix(" See README.md.")
        rows.append((f"[{title}]({path})", f"`{folder}/`", about))
    told = "The first page says which file is where. The others are about one folder each: a room, below the chapters."
    return f"# Rooms of the house\n\n{told}\n\n" + table(("page", "folder", "what it is about"), rows)


COLLECTIVES = "Collectives, step by step"  # its page's title
PLAYED = {  # the page on which a reader can play with a chapter's subject
    "ring": "collectives",
    "context_parallel": "collectives",
    "expert_parallel": "collectives",
    "pipeline": "schedules",
    **dict.fromkeys(("data_parallel", "zero1", "zero2", "zero3", "tensor_parallel"), "memory"),
    **dict.fromkeys(("fsdp", "parallel3d"), "plan"),
}


def chapter(name: str, ran: str, computing: Sequence[forms.Page]) -> str:
    """A chapter's page: text, run, code with notes, what it changes, the mutants that its claims catch. computing: the
    pages that compute, if there are any."""
    document, pieces = annotate.take_apart(PACKAGE / f"{name}.py")
    title, _, rest = document.partition("\n")
    titles = {"collectives": COLLECTIVES} | {page.name: page.title for page in computing}
    played = PLAYED.get(name, "")
    play = f"Play with it: [{titles[played]}](../{played}.md)" if played in titles else ""
    parts = [f"# {name}", f"**{title}**", raw(annotate.prose(rest)), lessons_of(name), play]
    if ran:
        parts += ["## A run", ran]
    told = f"`minidist/{name}.py`, with its notes next to what they are about."
    parts += ["## The code", told, raw(annotate.as_html(pieces))]
    if found := changes.changes(name):
        parts += ["## What changes", "Each method next to the one that it replaces.", raw(changes.as_html(found))]
    if (file := PACKAGE / "claims" / "mutants" / f"{name}.toml").exists():
        rows = [(mutant.mistake, "; ".join(mutant.fells)) for mutant in mutants_of(file)]
        parts += ["## Broken programs, and the claims that fall", table(("the mistake", "claims that fall"), rows)]
    return "\n\n".join(part for part in parts if part)


def lessons_of(name: str) -> str:
    """Links to the lessons whose model answer is this chapter."""
    found = []
    for line in (CLONE / "lessons" / "README.md").read_text().splitlines():
        link = re.match(r"\| \[(.*?)\]\((.*?)\)", line)
        if link and f"minidist/{name}.py)" in line:
            found.append(f"[Lesson {link[1]}](../lessons/{link[2]})")
    return " ".join(found)


ORPHAN = "---\norphan: true\nnosearch: true\n---"


def source(path: str) -> str:
    """A page for a file of the clone that is no chapter, or for a folder's files. Only links lead to it, no search."""
    if (CLONE / path).is_dir():
        files = sorted(file for file in (CLONE / path).iterdir() if file.is_file())
        shown = [f"`{path}/{file.name}`\n\n````text\n{file.read_text()}\n````" for file in files]
        return "\n\n".join([ORPHAN, f"# {posixpath.basename(path)}", *shown])
    text = (CLONE / path).read_text()
    parts = [ORPHAN, f"# {posixpath.basename(path)}"]
    if path.endswith(".py"):
        document, pieces = annotate.take_apart(CLONE / path)
        title, _, rest = document.partition("\n")
        parts += [f"`{path}`: {title}", raw(annotate.prose(rest)), raw(annotate.as_html(pieces))]
    else:
        parts += [f"`{path}`", f"````text\n{text}\n````"]
    return "\n\n".join(part for part in parts if part)


# ---- figures of papers -----------------------------------------------------------------------------------------------

COLUMNS = ("paper", "where", "which", "printed", "formula", "comes out", "read in; why it differs")
EVERY = "all"  # the choice of all papers, or all kinds of evidence


def figures(counted: Mapping[int, float]) -> str:
    """All figures of papers, in a table that a reader can search, and filter by paper and evidence. counted: what ranks
    have counted, by the figure's id."""
    papers, rows = library(), []
    for paper in papers.values():
        for out in outcomes(paper, counted):
            figure = out.figure
            cells = [paper.name, figure.source, figure.cell, f"{figure.printed} {figure.unit}".strip(), figure.formula]
            cells += [come_out(out), "; ".join(filter(None, (figure.evidence, figure.differs)))]
            marks = f'data-paper="{paper.name}" data-evidence="{figure.evidence}"'
            rows.append(f"<tr {marks}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f'<th scope="col">{word}</th>' for word in COLUMNS)
    shown = f'<table class="figures" id="figures"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    search = (
        f'<form class="compute" id="filter">{forms.ChoiceField("paper", "paper", EVERY, [EVERY, *papers]).as_html()}'
        f"{forms.ChoiceField('evidence', 'where it was read', EVERY, [EVERY, *get_args(Evidence)]).as_html()}"
        '<label>section, formula, any words <input name="words" type="search"></label></form>'
        '<p><output id="count"></output></p>'
    )
    script = '<script type="module" src="_static/figures.js"></script>'
    return "\n\n".join([
        "# What papers print, and what comes out here",
        "A figure comes out by its formula, or ranks count it: `python -m minidist papers --run`. ✓: it comes out as\n"
        "printed. ✗: it does not, and the last column says why. What authors measured on their own cluster cannot\n"
        "come out here.",
        raw(f'{search}<div class="wide tall" tabindex="0">{shown}</div>{script}'),
    ])  # fmt: skip


def come_out(out: Recounted) -> str:
    """The recounted figure, whether it agrees, and whether ranks counted it; or why there is none."""
    if not out.shown:
        return {"ranks": "(not counted)", "theirs": "(measured by the authors)"}[out.how]
    return f"{out.shown} {'✓' if out.agrees else '✗'}{' on ranks' * (out.value is not None)}"


# ---- pages that compute ----------------------------------------------------------------------------------------------


NO_SCRIPT = "To change a setting you need JavaScript, and a web server: make show."  # until the page's script runs


def computing(page: forms.Page) -> str:
    """A page that computes, with its first view."""
    view = f'<div id="view" aria-live="polite">{compute.VIEWS[page.name](page.first())}</div>'
    state = f'<p><output id="state">{NO_SCRIPT}</output></p>\n'
    script = '<script type="module" src="_static/compute.js"></script>'
    return f"# {page.title}\n\n{page.text}\n\n{raw(page.form() + state + view + script)}"


FIRST = ("reduce-scatter", 4)  # the collective, and the ranks, that the page shows at first


def collectives(recorded: traces.Traces) -> str:
    """The page that plays traces: its first view; its script reads all others from files next to the page."""
    name, ranks = FIRST
    settings: list[forms.Setting] = [
        forms.ChoiceField("name", "collective", name, list(traces.COLLECTIVES)),
        forms.Slider("ranks", "ranks N", ranks, traces.RANKS[0], traces.RANKS[-1]),
        forms.Slider("step", "steps done", 0, 0, len(recorded[name, ranks]["messages"])),
    ]
    inputs = "\n".join(one.as_html() for one in settings)
    buttons = "".join(
        f'<button type="button" data-by="{by}">{word}</button> ' for by, word in ((-1, "Back"), (1, "Next"))
    )
    return "\n\n".join([
        f"# {COLLECTIVES}",
        "Each row is a rank, and each rank has a color. A box is a chunk of the rank's array, with its number. The\n"
        "colors say whose parts are in it, and a frame says that it has just arrived. Each chunk is one number of 8\n"
        "bytes. All this was recorded while this page was made: `minidist/ring.py` and\n"
        "`minidist/context_parallel.py` ran on ranks. The arrow keys ← and → go a step back and forth.",
        raw(
            f'<form class="compute collectives">{inputs}<p class="buttons">{buttons}</p></form>'
            f'{stripes(recorded)}<div id="view" aria-live="polite">{draw_collective(recorded, *FIRST)[0]}</div>'
            "<noscript>The steps need JavaScript.</noscript>"
            '<script type="module" src="_static/collectives.js"></script>'
        ),
    ])  # fmt: skip


def draw_collective(recorded: traces.Traces, name: str, ranks: int) -> list[str]:
    """The views of a collective, one for each step, as the page's script reads them."""
    one = traces.COLLECTIVES[name]
    return [*draw_steps(one.title, one.text, recorded[name, ranks], traces.COLORS)]


def stripes(recorded: traces.Traces) -> str:
    """The colors of all sets of ranks whose parts are ever summed together."""
    items = (
        item for one in recorded.values() for rank in one["held"] for step in rank for item in step if item is not None
    )
    return name_colors({of for _, of in items}, traces.COLORS)


# ---- one text --------------------------------------------------------------------------------------------------------


def one_text() -> str:
    """The book for a language model, in one file: the README, and all chapters."""
    parts = [(CLONE / "README.md").read_text()]
    for entry in CHAPTERS:
        parts.append(f"# minidist/{entry.name}.py\n\n```python\n{(PACKAGE / f'{entry.name}.py').read_text()}```")
    return "\n\n".join(parts)
