"""Every number that minidist says a paper prints, next to what is reproduced here, and how.

    python -m minidist papers                  the papers
    python -m minidist papers --paper zero     each of one paper's figures
    python -m minidist papers --run            those that up to 256 ranks can count, counted: a few minutes
    python -m minidist papers --run all        also those that 1,024 ranks count

A figure comes out by a formula, or from ranks that count it at the paper's own N, or p and m. If a paper disagrees with
itself, what comes out is not what is printed, and the reason is given below the table. What the authors measured on
their own cluster cannot come out here; a chapter shows its own run next to it.
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
from minidist.cli.tables import make_table, mark, show
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
    return {
        "paper": name,
        "source": figure.source,
        "cell": figure.cell,
        "printed": figure.printed,
        "unit": figure.unit,
        "formula": figure.formula,
        "value": figure.value,
        "counted": outcome.value,
        "comes out": outcome.shown,
        "agrees": outcome.agrees,
        "differs": figure.differs,
        "evidence": figure.evidence,
    }


def print_papers(chosen: Sequence[Paper], found: dict[str, list[Recounted]]) -> None:
    """A row for each paper: its figures, how many agree, how many ranks can count, how many contradict the paper."""
    table = make_table(left=("", "paper"), right=("printed", "agree", "on ranks", "differ", "theirs"))
    sums = [0] * 5
    for paper in chosen:
        rows = found[paper.name]
        numbers = [
            len(rows),
            sum(outcome.agrees is True for outcome in rows),
            sum(outcome.on_ranks for outcome in rows),
            sum(bool(outcome.figure.differs) for outcome in rows),
            sum(outcome.how == "theirs" for outcome in rows),
        ]
        sums = [total + more for total, more in zip(sums, numbers, strict=True)]
        table.add_row(paper.name, paper.title, *map(str, numbers))
    table.add_section()
    table.add_row("", "", *map(str, sums))
    show("Numbers that papers print, and how many of them come out here", table)
    print("on ranks: counted at the paper's own N, or p and m, with --run, above 256 ranks")
    print("with --run all; differ: the paper disagrees with itself, see --paper NAME;")
    print("theirs: measured by its authors.")


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
