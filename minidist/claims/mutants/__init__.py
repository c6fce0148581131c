"""Broken programs, which claims must catch.

    python -m minidist mutants            all of them: two or three minutes
    python -m minidist mutants zero3      those of one chapter

A claim that cannot fail proves nothing. Each mutant is the whole program with one mistake, a few lines of one file. It
runs on ranks as its chapter does, and it still trains, often to the very same losses. The claims that its entry names
must fail; a crash or a different loss does not count. A mutant survives if one of these claims holds, and then the exit
status is 1. The output ends with the claims that catch no mutant.

Each chapter has a file next to this one, CHAPTER.toml. Its `options` belong to all command lines. They leave the proof
of numbers out (claims/proof.py), which would end some mutants early; mutants of values say --prove. A mutant has:

    mistake    in one sentence
    options    further options
    ranks      4 if not given
    file       of the package
    old, new   lines of the file, which must occur exactly once, and what replaces them (patch.py)
    caught_by  the claims: source, claim
    layout     options that only the chapter has. If it is given, even if it is empty, the losses are compared with
               those of serial training with all options except these: "serial training, losses" is one more claim.
               It catches bugs that change what is learned, but no byte count.

The folder record/ has published bugs, which `minidist/bugs/` runs: `python -m minidist bugs`.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minidist
from minidist import UsageError
from minidist.claims.mutants.patch import Patch, read_document, read_patches, read_text
from minidist.claims.reports import count_here
from minidist.cli.options import tool
from minidist.cli.progress import StatusLine
from minidist.cli.tables import make_table, mark, show
from minidist.mpi import environment
from minidist.system import processes
from minidist.system.files import temporary_folder

TABLE = Path(__file__).parent
PACKAGE = Path(minidist.__file__).parent
TIMEOUT = 120.0  # seconds for one mutant, which takes about one


@dataclass(frozen=True, kw_only=True)
class Mutant(Patch):
    """A mistake, the command line that makes it, and the claims that must catch it."""

    chapter: str
    mistake: str
    file: str
    caught_by: tuple[str, ...]
    options: str = ""
    ranks: int = 4
    layout: str | None = None


@dataclass(frozen=True)
class Verdict:
    """The outcome of a mutant: the claims in its report, by name, and whether they hold."""

    mutant: Mutant
    holds: dict[str, bool]
    said: str = ""  # how it ended, if it left no report

    @property
    def failed(self) -> list[str]:
        return [name for name, holds in self.holds.items() if not holds]

    @property
    def survives(self) -> bool:
        return not set(self.mutant.caught_by) <= set(self.failed)


def main(arguments: Sequence[str], chapters: Sequence[str]) -> int:
    """Run mutants, and print which claims failed; returns the exit status. chapters: all chapters, in order.

    Raises UsageError for what cannot work, before anything is started.
    """
    made = tool("mutants", __doc__)
    made.add_argument("chapters", nargs="*", metavar="CHAPTER", help="whose mutants; default: all")
    made.operands(arguments)
    if environment.ranks():
        raise UsageError("mutants starts ranks itself: run it without mpirun")
    known = [chapter for chapter in chapters if (TABLE / f"{chapter}.toml").exists()]
    if len(arguments) > 1 or not set(arguments) <= set(known):
        raise UsageError(f"{' '.join(arguments)!r} is no chapter with mutants: take one of {', '.join(known)}")
    return run({chapter: mutants_of(TABLE / f"{chapter}.toml") for chapter in arguments or known})


def mutants_of(file: Path) -> list[Mutant]:
    """The mutants of a chapter. Raises UsageError if one cannot be made."""
    written = read_document(file)
    usual, mutants = written["options"], []
    for keywords in read_patches(written, "mutant"):
        options = f"{usual} {keywords.pop('options', '')}"
        mutant = Mutant(chapter=file.stem, options=options, **keywords)
        try:
            mutant.apply((PACKAGE / mutant.file).read_text(encoding="utf-8"), mutant.file)
        except UsageError as error:
            raise UsageError(f"{file.name}: {mutant.mistake!r}: {error}") from None
        mutants.append(mutant)
    return mutants


def run(table: dict[str, list[Mutant]]) -> int:
    """Run the mutants of each chapter; returns the exit status: 0 if each is caught, and each claim catches one."""
    status, everything = StatusLine(shown=True), sum(map(len, table.values()))
    outcomes: list[Verdict] = []
    for chapter, mutants in table.items():
        for mutant in mutants:
            status.show(f"mutant {len(outcomes) + 1} of {everything}, of {chapter}", len(outcomes) / everything)
            outcomes.append(perform(mutant))
        status.clear()
        print_outcomes(chapter, outcomes[-len(mutants) :])
    status.close()
    survivors = sum(outcome.survives for outcome in outcomes)
    print(f"{everything - survivors} of {everything} mutants were caught by the claims that must catch them.")
    standing = claims_that_stand(outcomes)
    print_standing(standing, len({(outcome.mutant.chapter, name) for outcome in outcomes for name in outcome.holds}))
    return 1 if survivors or standing else 0


def perform(mutant: Mutant) -> Verdict:
    """Run a mutant: a changed copy of the package, in a temporary folder."""
    with changed_copy([(mutant.file, mutant)]) as folder:
        options = f"{mutant.options} {mutant.layout or ''}"
        program = [sys.executable, "-m", f"minidist.{mutant.chapter}", "--ranks", str(mutant.ranks), *options.split()]
        try:
            printed = processes.run(
                [*program, "--json", "report.json"],
                TIMEOUT,
                cwd=folder,
                env={**os.environ, **python_in(folder)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            ).stdout
        except subprocess.TimeoutExpired:
            return Verdict(mutant, {}, f"it had not ended after {TIMEOUT:g} s")
        report = Path(folder) / "report.json"
        if not report.exists():
            *_, last = ["", *filter(None, (line.strip() for line in printed.splitlines()))]
            return Verdict(mutant, {}, f"it ended without a report: {last}")
        document = json.loads(report.read_text(encoding="utf-8"))
        holds = {name_of(claim): claim["holds"] for claim in document["claims"]}
        if mutant.layout is not None:
            serial = count_here(1, f"train {mutant.options}")["loss"]
            pairs = zip(document["loss"], serial, strict=True)
            holds["serial training, losses"] = all(math.isclose(loss, right, rel_tol=1e-9) for loss, right in pairs)
        return Verdict(mutant, holds)


@contextmanager
def changed_copy(patches: Iterable[tuple[str, Patch]]) -> Iterator[str]:
    """A temporary folder with a copy of the package. patches: each with its file in the package, made in this order.
    Raises UsageError if one cannot be made."""
    with temporary_folder() as folder:
        copy = folder / "minidist"
        shutil.copytree(PACKAGE, copy, copy_function=link)  # with compiled files, whose timestamps are still valid
        for name, patch in patches:
            file = copy / name
            text = patch.apply(read_text(file), name)
            file.unlink()  # which leaves the package's own file as it is
            file.write_text(text, encoding="utf-8")
            for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
                compiled.unlink()
        yield str(folder)


def link(source: str, copy: str) -> None:
    """Make a hard link, which takes a tenth of the time of a copy; on another disk, copy."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)


def python_in(folder: str) -> dict[str, str]:
    """The environment in which Python imports the copy."""
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def name_of(claim: dict[str, Any]) -> str:
    """A claim by its source and its words, without a leading count."""
    return f"{claim['source']}, {re.sub(r'^of [0-9]+ ', '', claim['claim'])}"


# ---- on the screen ---------------------------------------------------------------------------------------------------


def print_outcomes(chapter: str, outcomes: Sequence[Verdict]) -> None:
    """A row for each mutant: its mistake, the claims that must fail, and how many others did."""
    from rich.markup import escape

    table = make_table(left=("mistake", "caught by"), right=())
    table.columns[0].width, table.columns[1].width = 40, 35
    table.add_column("", no_wrap=True)
    for outcome in outcomes:
        named = [name for name in outcome.mutant.caught_by if name in outcome.failed]
        standing = [f"not by: {name}" for name in outcome.mutant.caught_by if name not in outcome.failed]
        more = len(outcome.failed) - len(named)
        lines = [*named, *([f"and {more} more"] if more else []), *(standing if outcome.holds else [outcome.said])]
        table.add_row(outcome.mutant.mistake, escape("\n".join(lines)), mark(not outcome.survives))
    show(chapter, table)


def claims_that_stand(outcomes: Sequence[Verdict]) -> list[tuple[str, str]]:
    """The claims that held under every mutant of their chapter, with it."""
    made = dict.fromkeys((outcome.mutant.chapter, name) for outcome in outcomes for name in outcome.holds)
    failed = {(outcome.mutant.chapter, name) for outcome in outcomes for name in outcome.failed}
    return [claim for claim in made if claim not in failed]


def print_standing(standing: Sequence[tuple[str, str]], made: int) -> None:
    """Print which of the claims catch no mutant. made: the number of all claims."""
    if not standing:
        print(f"Each of their {made} claims caught a mutant at least once.")
        return
    print(f"{len(standing)} of their {made} claims caught no mutant:")
    for chapter, name in standing:
        print(f"    {chapter}: {name}")
