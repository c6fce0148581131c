"""The content of the pages: MyST, made from docstrings, code, figures and mutants."""

import html
import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import minidist
from minidist.claims.mutants import mutants_of
from minidist.claims.papers import KINDS, Recounted, library, outcomes
from minidist.contents import CHAPTERS
from minidist.papers.figure import Evidence
from minidist.site import annotate, changes, compute, forms, traces
from minidist.site.views import types
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


# ---- chapters and code -----------------------------------------------------------------------------------------------


def table_of_chapters() -> str:
    rows = [(f"[{entry.name}]({entry.name}.md)", entry.paper, f"`{entry.launch}`") for entry in CHAPTERS]
    return "# The chapters\n\n" + table(("chapter", "based on", "run it"), rows)


def table_of_rooms(paths: Sequence[str]) -> str:
    """The table of folders that have a page. paths: their texts in the clone."""
    rows = []
    for path in paths:
        title, folder = (CLONE / path).read_text().partition("\n")[0].removeprefix("# "), posixpath.dirname(path)
        room, about = CLONE / folder / "__init__.py", ""
        if path.endswith("README.md") and room.exists():
            document, _ = annotate.take_apart(room)
            about = document.partition("\n")[0].removesuffix(" See README.md.")
        rows.append((f"[{title}]({path})", f"`{folder}/`", about))
    told = "The first page maps the code. Each other page describes one folder."
    return f"# The code, folder by folder\n\n{told}\n\n" + table(("page", "folder", "what it is about"), rows)


COLLECTIVES = "Collectives, step by step"  # its page's title
PLAYED = {  # the page on which a reader can play with a chapter's subject
    "ring": "collectives",
    "context_parallel": "collectives",
    "expert_parallel": "collectives",
    "pipeline": "schedules",
    **dict.fromkeys(("data_parallel", "zero1", "zero2", "zero3", "zero_r", "tensor_parallel"), "memory"),
    **dict.fromkeys(("fsdp", "parallel3d"), "plan"),
}


PLAYED_IN_LESSONS = {  # by a lesson's number
    **dict.fromkeys(("04", "16", "17"), "collectives"),
    **dict.fromkeys(("05", "06", "07", "08", "09", "10", "11", "12"), "memory"),
    **{"13": "schedules", "14": "plan", "15": "plan"},
}


def titles_of(computing: Sequence[forms.Page]) -> dict[str, str]:
    """The titles of all pages to play with, by their names."""
    return {"collectives": COLLECTIVES} | {page.name: page.title for page in computing}


def played_with(lesson: str, computing: Sequence[forms.Page]) -> str:
    """A link from a lesson to the page on which a reader can play with its subject."""
    titles, played = titles_of(computing), PLAYED_IN_LESSONS.get(posixpath.basename(posixpath.dirname(lesson))[:2], "")
    return f"Play with it: [{titles[played]}](../../{played}.md)." if played in titles else ""


def chapter(name: str, ran: str, computing: Sequence[forms.Page]) -> str:
    """A chapter's page: text, run, code with notes, what it changes, the mutants that its claims catch. computing: the
    pages that compute, if there are any."""
    document, pieces = annotate.take_apart(PACKAGE / f"{name}.py")
    title, _, rest = document.partition("\n")
    titles, played = titles_of(computing), PLAYED.get(name, "")
    play = f"Play with it: [{titles[played]}](../{played}.md)" if played in titles else ""
    parts = [f"# {name}", f"**{title}**", raw(annotate.prose(rest)), lessons_of(name), play]
    if ran:
        parts += ["## A run", ran]
    if name == "spmd_types":
        parts += ["## A block, with types", raw(types.draw_blocks())]
    told = f"`minidist/{name}.py`, with its notes next to what they are about."
    parts += ["## The code", told, raw(annotate.as_html(pieces))]
    if found := changes.changes(name):
        parts += ["## What changes", "Each method next to the one that it replaces.", raw(changes.as_html(found))]
    if (file := PACKAGE / "claims" / "mutants" / f"{name}.toml").exists():
        rows = [(mutant.mistake, "; ".join(mutant.caught_by)) for mutant in mutants_of(file)]
        parts += ["## Broken programs, and the claims that catch them", table(("the mistake", "caught by"), rows)]
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

COLUMNS = ("paper", "where", "which", "printed", "here", "why it differs", "formula", "read in")
EVERY = "all"  # the choice of all papers, or all kinds of evidence
MISPRINTS, ON_RANKS = "misprints", "on-ranks"  # the kinds of figures that a button shows


def figures(counted: Mapping[int, float]) -> str:
    """All figures of papers, in a table that a reader can search, and filter by kind, paper and evidence. It opens on
    the misprints. counted: what ranks have counted, by the figure's id."""
    found = {name: outcomes(paper, counted) for name, paper in library().items()}
    every = [out for rows in found.values() for out in rows]
    rows = "".join(figure_row(name, out) for name, outs in found.items() for out in outs)
    head = "".join(f'<th scope="col">{word}</th>' for word in COLUMNS)
    shown = f'<table class="figures" id="figures"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    of = {kind: sum(out.kind == kind for out in every) for kind in KINDS}
    on_ranks = sum(out.on_ranks for out in every)
    buttons = "".join(
        f'<label><input type="radio" name="show" value="{kind}"{" checked" * (kind == MISPRINTS)}>{words}</label>'
        for kind, words in (
            (MISPRINTS, f"{of['differ']} misprints"),
            (ON_RANKS, f"{on_ranks} counted on ranks"),
            (EVERY, f"all {len(every)}"),
        )
    )
    search = (
        f'<form class="compute" id="filter"><fieldset class="long choices"><legend>figures</legend>{buttons}</fieldset>'
        f"{forms.ChoiceField('paper', 'paper', EVERY, [EVERY, *found]).as_html()}"
        f"{forms.ChoiceField('evidence', 'where it was read', EVERY, [EVERY, *get_args(Evidence)]).as_html()}"
        '<label>section, formula, any words <input name="words" type="search"></label></form>'
        f'<p><output id="count">{of["differ"]} of {len(every)} figures</output></p>'
        "<noscript><style>#figures tr[hidden] { display: table-row !important; }</style></noscript>"
    )
    script = '<script type="module" src="_static/figures.js"></script>'
    agree = "were counted on ranks, and agree" if counted else "are counted on ranks"
    return "\n\n".join([
        "# Published figures, recomputed",
        f"Of **{len(every)} figures** that {len(found)} papers print, **{of['formula']}** agree by their formula;"
        f" **{of['ranks']}** more {agree}; **{of['differ']} differ**, because the paper contradicts itself:\n"
        f"misprints. {of['authors']} were measured on the authors' clusters, and cannot be reproduced here.",
        raw(f'{search}<div class="wide tall" tabindex="0">{shown}</div>{script}'),
        "✓: the figure here is the printed one. ✗: it is not, and the table says why. In a terminal: "
        "`python -m minidist papers`, and with `--run` counted on ranks.",
    ])  # fmt: skip


def figure_row(paper: str, out: Recounted) -> str:
    figure, kinds = out.figure, [MISPRINTS] * (out.kind == "differ") + [ON_RANKS] * out.on_ranks
    cells = [paper, figure.source, figure.cell, f"{figure.printed} {figure.unit}".strip(), come_out(out)]
    cells += [figure.differs, figure.formula, figure.evidence]
    marks = f'data-paper="{paper}" data-evidence="{figure.evidence}" data-kinds="{" ".join(kinds)}"'
    hidden = " hidden" * (out.kind != "differ")
    return f"<tr {marks}{hidden}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def come_out(out: Recounted) -> str:
    """The recounted figure, whether it agrees, and whether ranks counted it; or why there is none."""
    if not out.shown:
        return {"ranks": "(not counted)", "authors": "(measured by the authors)"}[out.kind]
    return f"{out.shown} {'✓' if out.agrees else '✗'}{' on ranks' * (out.value is not None)}"


# ---- pages that compute ----------------------------------------------------------------------------------------------


NO_SCRIPT = "To change a setting you need JavaScript, and a web server: make show."  # until the page's script runs


def computing(page: forms.Page) -> str:
    """A page that computes, with its first view."""
    view = f'<div id="view" aria-live="polite">{compute.VIEWS[page.name](page.first())}</div>'
    state = f'<p><output id="state">{NO_SCRIPT}</output></p>\n'
    script = '<script type="module" src="_static/compute.js"></script>'
    made = raw(f'<div class="computing">{page.form()}{state}{view}</div>{script}')
    return f"# {page.title}\n\n{page.text}\n\n{made}"


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
