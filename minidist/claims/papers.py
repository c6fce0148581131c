"""Published figures, recomputed: each by its formula, or counted on ranks.

    python -m minidist papers                  the papers
    python -m minidist papers --paper zero     each of one paper's figures
    python -m minidist papers --run            those that up to 256 ranks can count, counted: a few minutes
    python -m minidist papers --run all        also those that 1,024 ranks count

Each figure is computed from its formula, or counted on ranks at the paper's own N, or p and m. If a paper disagrees
with itself, the figure differs from what is printed, and the reason is given below the table. Measurements on the
authors' clusters cannot be reproduced here; a chapter shows its own run next to them.
"""

import importlib
import math
import pkgutil
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minidist import papers
from minidist.claims import counted
from minidist.cli.fields import choice, option, output, read
from minidist.cli.options import tool
from minidist.cli.paths import check_writable, write_json
from minidist.cli.progress import StatusLine
from minidist.cli.tables import make_console, make_table, mark, show
from minidist.papers.figure import Figure


class Paper(NamedTuple):
    """One module of `minidist/papers/`: its name, the papers that it covers, their figures."""

    name: str
    title: str
    figures: list[Figure]


def library() -> dict[str, Paper]:
    """The papers with known figures, by their modules' names."""
    found = {}
    for entry in pkgutil.iter_modules(papers.__path__):
        module = importlib.import_module(f"{papers.__name__}.{entry.name}")
        if figures := getattr(module, "FIGURES", []):
            sentence = " ".join((module.__doc__ or entry.name).split())  # title, where it appeared; and more
            found[entry.name] = Paper(entry.name, re.split(r", arXiv|(?<!al)\. |\.$", sentence)[0], figures)
    return found


def countable(paper: Paper) -> list[counted.Job]:
    """The jobs that count figures of a paper."""
    known = {id(figure) for figure in paper.figures}
    return [job for job in counted.JOBS if any(id(figure) in known for figure, _ in job.gives)]


def count(chosen: Sequence[Paper], most: float = counted.MOST) -> dict[int, float]:
    """Run the jobs of at most this many ranks that count figures of these papers: each figure's value, by its id."""
    jobs = list({id(job): job for paper in chosen for job in countable(paper) if job.ranks <= most}.values())
    status, values = StatusLine(shown=True), dict[int, float]()
    for i, job in enumerate(jobs):
        line = f"python -m minidist.{job.line} --ranks {job.ranks}" if job.line else "models, as they are declared"
        status.show(line, i / len(jobs))
        values |= {id(figure): value for figure, value in counted.run(job)}
    status.close()
    return values


KINDS = ("formula", "ranks", "differ", "authors")  # each figure is of one


class Recounted(NamedTuple):
    """A figure, and what came out: on ranks if they were started, else by its formula."""

    figure: Figure
    on_ranks: bool  # whether ranks can count it
    value: float | None  # what ranks have counted

    @property
    def shown(self) -> str:
        """What comes out, as the paper would print it; nothing, if only ranks or the authors' cluster can tell."""
        known = self.value is not None or self.figure.value is not None
        return self.figure.shown(self.value) if known else ""

    @property
    def agrees(self) -> bool | None:
        """Whether that agrees with what is printed; None: nothing has come out."""
        return self.figure.agrees(self.value) if self.shown else None

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        if self.figure.differs or self.agrees is False:
            return "differ"
        if self.figure.value is not None:
            return "formula"
        return "ranks" if self.on_ranks else "authors"

    @property
    def how(self) -> str:
        if self.value is not None:
            return "counted"
        return self.figure.formula if self.figure.value is not None else "ranks" if self.on_ranks else "theirs"


def outcomes(paper: Paper, values: Mapping[int, float]) -> list[Recounted]:
    """Its figures, in the paper's order."""
    on_ranks = {id(figure) for job in countable(paper) for figure, _ in job.gives}
    return [Recounted(figure, id(figure) in on_ranks, values.get(id(figure))) for figure in paper.figures]


# ---- on the screen, and for machines ---------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """List, show, count; 1 if a figure does not come out as printed, and no reason is known.

    Raises UsageError for what cannot work, before anything is started.
    """
    known, up_to = library(), f"count on ranks, up to {counted.MOST}; all: also on more"

    @dataclass(frozen=True, kw_only=True)
    class PapersOptions:
        paper: str | None = choice(known, None, "its figures, one by one")
        run: str | None = option(None, None, "all", up_to, choices=("most", "all"), nargs="?", const="most")
        json: str | None = output("for machines; - is standard output")

    options = read(tool("papers", __doc__), PapersOptions, arguments)
    if options.json != "-":
        check_writable("--json", options.json)
    chosen = [known[options.paper]] if options.paper else list(known.values())
    values = count(chosen, math.inf if options.run == "all" else counted.MOST) if options.run else {}
    found = {paper.name: outcomes(paper, values) for paper in chosen}
    if options.json:
        figures = [as_row(name, outcome) for name, rows in found.items() for outcome in rows]
        write_json(options.json, {"figures": figures})
    if options.json != "-":
        if options.paper:
            print_figures(chosen[0], found[options.paper])
        else:
            print_papers(chosen, found)
    missed = [outcome for rows in found.values() for outcome in rows if outcome.agrees is False]
    return 1 if any(not outcome.figure.differs for outcome in missed) else 0


def as_row(name: str, outcome: Recounted) -> dict[str, Any]:
    """A figure for machines."""
    figure = outcome.figure
    of = {each: getattr(figure, each) for each in ("source", "cell", "printed", "unit", "formula", "value")}
    found = {"counted": outcome.value, "comes out": outcome.shown, "agrees": outcome.agrees}
    return {"paper": name, **of, **found, "differs": figure.differs, "evidence": figure.evidence}


NUMBERS = 44  # the width of the five columns of numbers, and of the space between all columns


def print_papers(chosen: Sequence[Paper], found: dict[str, list[Recounted]]) -> None:
    """A line for each paper: its figures, by kind, and a sum."""
    table = make_table(left=("", "paper"), right=("printed", *KINDS))
    for column in table.columns:
        column.no_wrap = True
    table.columns[1].overflow = "ellipsis"
    table.columns[1].max_width = max(make_console().width - NUMBERS - max(len(paper.name) for paper in chosen), 1)
    every = [outcome for paper in chosen for outcome in found[paper.name]]
    for paper in chosen:
        table.add_row(paper.name, paper.title.partition(": ")[2] or paper.title, *count_kinds(found[paper.name]))
    table.add_section()
    table.add_row("", "", *count_kinds(every))
    show("Published figures, recomputed", table)
    counted_now = sum(outcome.value is not None for outcome in every)
    print("formula: agrees, computed from the paper's formula; ranks: only ranks can count")
    print("it, at the paper's own N, or p and m (--run; above 256 ranks --run all); differ:")
    print("the paper contradicts itself (--paper NAME says how); authors: measured on")
    print("their cluster, and not reproducible here.")
    if counted_now:
        print(f"Counted on ranks now: {counted_now} of {sum(outcome.on_ranks for outcome in every)}.")


def count_kinds(rows: Sequence[Recounted]) -> list[str]:
    """The number of figures, and how many are of each kind: these add up."""
    return [str(len(rows)), *(str(sum(outcome.kind == kind for outcome in rows)) for kind in KINDS)]


def print_figures(paper: Paper, rows: Sequence[Recounted]) -> None:
    """A row for each of its figures; below, why some do not come out as printed."""
    from rich.markup import escape

    table = make_table(left=("", "number"), right=("printed", "comes out"))
    table.columns[0].no_wrap = True
    table.add_column("", no_wrap=True)
    table.add_column("how", overflow="fold")
    reasons: dict[str, str] = {}
    above = None
    for outcome in rows:
        figure = outcome.figure
        if figure.differs:
            reasons.setdefault(figure.differs, f"({len(reasons) + 1})")
        verdict = "" if outcome.agrees is None else reasons.get(figure.differs) or mark(outcome.agrees)
        source = "" if figure.source == above else figure.source
        words = (source, figure.cell, f"{figure.printed} {figure.unit}".strip(), outcome.shown)
        table.add_row(*map(escape, words), verdict, escape(outcome.how))
        above = figure.source
    show(paper.title, table)
    for reason, name in reasons.items():
        print(textwrap.fill(f"{name} {reason}", 79, subsequent_indent="    "))
    for evidence, wording in EVIDENCE.items():
        sources = dict.fromkeys(outcome.figure.source for outcome in rows if outcome.figure.evidence == evidence)
        if sources:
            print(textwrap.fill(f"{wording}: {', '.join(sources)}.", 79, subsequent_indent="    "))


EVIDENCE = {
    "the paper": "Read in the paper",
    "a second source": "Read where others quote the paper",
    "code": "Read in the system's own code or documentation",
}
