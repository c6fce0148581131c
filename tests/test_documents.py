"""What READMEs, notebooks and docstrings tell a reader to type, and where they send him: the programs take these lines,
and what they name is there. No line is run to its end: a program reads and checks it, and is stopped before it works.
"""

import ast
import glob
import itertools
import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import pytest

from minidist import Finished, UsageError
from minidist.__main__ import CHAPTERS
from minidist.bench import recompute
from minidist.bugs import checks as bug_checks
from minidist.checkpoints import checkpoint, convert, inspect
from minidist.claims import audit, declared, mutants, papers, reports
from minidist.classroom.course import gradebook as course
from minidist.classroom.course import release
from minidist.classroom.grading import grade as classroom
from minidist.cli import doctor, options
from minidist.launch import launcher
from minidist.memory import allocator, witness
from minidist.mpi import run
from minidist.mr.plan import Plan
from minidist.plan import command as plan
from minidist.plan import published
from minidist.programs import chapter
from minidist.programs import mapreduce as mapreduce_program
from tables import table

ROOT = Path(__file__).parents[1]
READMES = sorted([*ROOT.glob("*.md"), *ROOT.glob("minidist/**/README.md"), *ROOT.glob("lessons/**/README.md")])
HOUSE = (ROOT / "minidist/README.md").read_text()
LAUNCH = re.compile(
    r"(?:mpirun -n (?P<ranks>\d+) (?:-f hosts )?)?python -m (?P<program>minidist\b[\w.]*)(?P<rest>[^`\n]*)"
)
END = re.compile(r" +#| {3,}|,? and |;")  # of a command line: what follows is for the reader


def texts() -> Iterator[tuple[str, str]]:
    """(file, what a reader sees of it)."""
    for file in READMES:
        yield str(file.relative_to(ROOT)), file.read_text().replace(" \\\n", " ")
    for file in sorted(ROOT.glob("lessons/*/*.ipynb")):
        cells = json.loads(file.read_text())["cells"]
        yield str(file.relative_to(ROOT)), "\n".join("".join(cell["source"]) for cell in cells)
    for file in sorted([*ROOT.glob("minidist/**/*.py"), *ROOT.glob("lessons/*/*.py")]):
        yield str(file.relative_to(ROOT)), ast.get_docstring(ast.parse(file.read_text())) or ""
    yield "minidist/__main__.py", "\n".join(chapter.launch for chapter in CHAPTERS)


def stated() -> dict[tuple[int, str, str], list[str]]:
    """Every command line as (ranks, program, arguments), and the files that it stands in."""
    found: dict[tuple[int, str, str], list[str]] = {}
    for file, text in texts():
        for match in LAUNCH.finditer(text):
            if match["program"] != "minidist.launch.worker":  # started by the launcher alone
                line = int(match["ranks"] or 1), match["program"], END.split(match["rest"])[0].strip()
                found.setdefault(line, []).append(file)
    return found


STATED = stated()


class WouldWork(Exception):
    """The line is accepted: here the work would begin."""


class Reader(NamedTuple):
    """Who types, and what the programs see of it."""

    job: SimpleNamespace  # rank and size
    patch: pytest.MonkeyPatch


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A reader at the top of a clone, with the files that are his own to have, before programs that check and stop."""
    for name in ("minidist", "lessons", *(file.name for file in ROOT.glob("*.md"))):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("FILE", "FILE...", "my.txt", "tinyshakespeare.txt"):
        (tmp_path / name).write_text("To be, or not to be. " * 99)
    (tmp_path / "ds_config.json").write_text('{"train_batch_size": 64, "zero_optimization": {"stage": 2}}')
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --tensor-model-parallel-size 2"
    (tmp_path / "pretrain_gpt.sh").write_text(f"torchrun pretrain_gpt.py {sizes}")
    (tmp_path / "students.csv").write_text("student\nAda\n")
    (tmp_path / "mymodule.py").write_text("from minidist.mr.jobs import WordCount as MyJob")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    job = SimpleNamespace(rank=0, size=1)

    def stop(*_: Any, **__: Any) -> NoReturn:
        raise WouldWork

    def start(main: Any, prepare: Any, *_: Any, **__: Any) -> NoReturn:
        prepare(job)
        raise WouldWork

    for module in (run, chapter):
        monkeypatch.setattr(module, "run", start)
    for module in (options, chapter):
        monkeypatch.setattr(module, "in_one_process", lambda work: work())
    works = (
        (chapter, "train_and_report"),
        (doctor, "main"),
        (launcher, "find_mpiexec"),
        (allocator, "keep_freed_memory"),
        (bug_checks, "perform"),
        (reports, "count_here"),
        (declared, "count_here"),
        (mutants, "perform"),
    )
    checkpoints = ((chapter, "train_and_report"), (inspect, "main"), (convert, "to_fp32"))
    teaching = ((classroom, "grade"), (course, "opened"), (release, "students_edition"))
    others = ((mapreduce_program, "print_cluster"), (recompute, "print_chain"), (plan, "search"), (published, "main"))
    for module, work in (*works, *teaching, *checkpoints, *others):
        monkeypatch.setattr(module, work, stop)
    monkeypatch.setattr(witness, "begin", lambda: None)  # nothing would end it
    monkeypatch.setattr(checkpoint, "check", lambda *_: None)  # what --load names was never saved,
    monkeypatch.setattr(Plan, "check_output", lambda job: None)  # and what --resume names never begun
    return Reader(job, monkeypatch)


def type_in(reader: Reader, ranks: int, program: str, arguments: str) -> Any:
    """What a program says to a command line before it works: an exit status, if it has nothing to do."""
    reader.job.size = ranks
    words = [glob.glob(word) if "*" in word else [word] for word in shlex.split(arguments)]
    reader.patch.setattr(sys, "argv", [program, *itertools.chain(*words)])
    try:
        return runpy.run_module(program, run_name="__main__")
    except (WouldWork, Finished):
        return 0
    except SystemExit as ended:
        return ended.code or 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of runpy: the module is imported already
@pytest.mark.parametrize(
    ("ranks", "program", "arguments"),
    [pytest.param(*line, id=f"{files[0]}: {line[1]} {line[2]}") for line, files in STATED.items()],
)
def test_the_program_takes_the_line(reader: Reader, ranks: int, program: str, arguments: str) -> None:
    assert type_in(reader, ranks, program, arguments) == 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("program", "arguments"), table(__file__, "a_line_of_yesterday_is_found"))
def test_a_line_of_yesterday_is_found(reader: Reader, program: str, arguments: str) -> None:
    with pytest.raises(UsageError):
        type_in(reader, 8, program, arguments)


def test_lines_are_found_where_readers_find_them() -> None:
    of_lines = set(itertools.chain(*STATED.values()))
    assert {str(file.relative_to(ROOT)) for file in READMES} - of_lines <= {"CHANGELOG.md", "lessons/README.md"}
    assert {f"minidist/{chapter.name}.py" for chapter in CHAPTERS} <= of_lines
    assert {str(file.relative_to(ROOT)) for file in ROOT.glob("lessons/*/*.ipynb")} <= of_lines


# ---- what is named ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readme", READMES, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(readme: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", readme.read_text()):
        assert link.startswith("https://") or (readme.parent / link).exists(), link


def test_the_house_is_drawn_as_it_stands() -> None:
    """Every room and every file of the shelf, and nothing else."""
    drawing = HOUSE.split("```")[1]
    shelf = {path.name for path in (ROOT / "minidist").glob("[a-z]*.py")}
    rooms = {f"{path.parent.name}/" for path in (ROOT / "minidist").glob("*/__init__.py")}
    drawn = set(re.findall(r"(?<![\w/])\w+\.py|\w+/", drawing))
    assert drawn == shelf | rooms | {"flat.py"}


def test_what_the_house_says_is_where_it_says() -> None:
    rows = re.findall(r"^\| [^|]+ \| \[`([^`]+)`\]\([^)]+\) \| (.+) \|$", HOUSE, re.MULTILINE)
    assert len(rows) > 15
    for file, names in rows:
        source = (ROOT / "minidist" / file).read_text()
        for name in re.findall(r"(?<!\[)`(?:\w+\.)?(\w+)`", names):
            assert re.search(rf"(def|class) {name}\b|\.{name}\(", source), f"{file} has no {name}"


def test_readme_is_three_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_readme_counts_right() -> None:
    """Its numbers of papers, figures, audits and mutants are those that the programs named beside them have."""
    library = papers.library()
    figures = [outcome for paper in library.values() for outcome in papers.outcomes(paper, {})]
    chapters = chapter.find_all()
    lines = audit.list_lines(chapters)
    broken = [mutant for file in mutants.TABLE.glob("*.toml") for mutant in mutants.mutants_of(file)]
    readme = " ".join((ROOT / "README.md").read_text().split())
    for sentence in (
        f"{len(broken)} deliberately broken programs show that claims can fail",
        f"{len(figures)} figures that {len(library)} papers print",
        f"{sum(outcome.on_ranks for outcome in figures)} of them counted on ranks",
        f"the bytes that {len(lines)} chapters send, in {sum(map(len, lines.values()))} variants",
        f"NumPy and the kernel count the bytes that {sum(one.pooled for one in chapters.values() if one.cases)} hold",
        f"The kernel counts what {len(audit.ON_DISK)} read and write",
    ):
        assert sentence in readme
