"""Random command lines, of every chapter and every other command, on files and in surroundings of every kind: a program
does what is asked, or says in one line why not, with status 2. No trace, no hang, and nothing is left behind."""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from jobs.processes import processes_of, segments, wait_until
from minidist import __main__ as front
from minidist.bench import __main__ as bench
from minidist.classroom import __main__ as classroom
from minidist.cli.options import READER_LEFT, Parser
from minidist.deepspeed import __main__ as deepspeed
from minidist.launch.launcher import find_mpiexec
from minidist.programs.chapter import find_all

ROOT = Path(__file__).parents[1]
SEED = 20_261_121
USUAL, ALL = 27, 1000
LONGEST = 20  # seconds of a processor for each rank: with other work on the machine they take longer
PATIENCE = 120  # seconds until a line is taken for hung
CANNOT_WRITE = 74  # at the end, where an output or standard output is full
NOBODY = 65534

# What a chapter trains is small; what is drawn comes after it, and wins.
SMALL = "--steps 2 --layers 1 --width 8 --heads 2 --context 8 --batch 8"
WHOLE = ("0", "1", "2", "3", "4", "8", "-1", "x", "1.5", "", " ", "1000000000000", 309 * "9")
NUMBERS = ("0", "0.5", "1", "3", "1e9", "-1", "nan", "inf", "x", "", 309 * "9", f"{309 * '9'}GB")
CONFIGURATION = {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}
TEXTS: dict[str, str | bytes] = {
    "text": "the quick brown fox\n" * 200,
    "binary": b"\xff\x00\xfe" * 99,
    "empty": "",
    "unreadable": "to be or not to be\n" * 99,
    "config.json": json.dumps(CONFIGURATION),
}
FILES = (*TEXTS, "new", "folder", "nowhere/new", "n" * 300, "fifo", "link", "dangling", "loop", "folder/")
ABSOLUTE = ("/dev/null", "/proc/new", ".", "/")


# ---- what there is to type -------------------------------------------------------------------------------------------


class Reached(Exception):
    """A program has made its parser."""


def parser_of(begin: Callable[[], Any]) -> argparse.ArgumentParser:
    """The one that a program would parse its command line with."""

    def stop(parser: Parser, *_: Any) -> None:
        raise Reached(parser)

    with mock.patch.object(Parser, "parse_args", stop):
        try:
            begin()
        except Reached as reached:
            return reached.args[0]
    return Parser("none", "")


@dataclass(frozen=True)
class Program:
    """How to start a program, and what may be drawn for it."""

    words: str  # after python -m
    parser: argparse.ArgumentParser
    on_ranks: bool = False
    usual: str = ""
    refused: str = ""  # words with which it cannot work, where it would take minutes


@cache
def programs() -> list[Program]:
    made = []
    for name, chapter in find_all().items():
        made.append(Program(f"minidist.{name}", chapter.parser(), name != "train", SMALL if chapter.trains else ""))
    too_long = {"audit": "zero9", "mutants": "zero9", "bugs": "no-such-bug", "plan": "--ranks 0"}
    operands = {"inspect": ["x"], "to-fp32": ["x", "x"]}
    for name in front.COMMANDS:
        if name in ("doctor", "lessons", "mutants", "recompute"):  # take no options
            parser: argparse.ArgumentParser = Parser(name, "")
        else:
            parser = parser_of(lambda name=name: front.main([name, *operands.get(name, [])]))  # type: ignore[misc]
        made.append(Program(f"minidist {name}", parser, refused=too_long.get(name, "")))
    for name in classroom.COMMANDS:
        made.append(Program(f"minidist.classroom {name}", parser_of(lambda name=name: classroom.parse([name]))))  # type: ignore[misc]
    made.append(Program("minidist.bench", parser_of(lambda: bench.prepare([])), refused="--only nothing"))
    made.append(Program("minidist.deepspeed", parser_of(lambda: deepspeed.prepare([], 1)), True, SMALL))
    return made


def is_path(action: argparse.Action) -> bool:
    return bool(re.search("FILE|DIR|FOLDER|LESSON|OUT", str(action.metavar)))


def value_of(action: argparse.Action, draw: random.Random) -> str:
    """Something for an option: as it should be, nearly so, or not at all."""
    if action.choices and draw.random() < 0.8:
        return str(draw.choice(list(action.choices)))
    if is_path(action):
        return draw.choice((*FILES, *ABSOLUTE))
    if action.dest in ("steps", "sample"):
        return draw.choice(("0", "1", "2", "-1", "x"))
    return draw.choice(NUMBERS if "number" in getattr(action.type, "__qualname__", "") else WHOLE)


# ---- where it is typed -----------------------------------------------------------------------------------------------


NO_CAPABILITIES = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
SOMEBODY = {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def works(*command: str, **how: Any) -> bool:
    """Whether this machine lets tests do that."""
    try:
        return subprocess.run(command, capture_output=True, cwd="/", **how).returncode == 0
    except OSError:
        return False


@cache
def surroundings(on_ranks: bool) -> list[str]:
    """Those that there are on this machine; mpirun's own standard output is not a rank's."""
    alone = {"closed stdout": not on_ranks, "no reader": not on_ranks}
    root = os.geteuid() == 0
    possible = {
        "full TMPDIR": root and works("unshare", "-m", "true"),
        "no capabilities": root and works(*NO_CAPABILITIES, "true"),  # root who may not read everything
        "nobody": root and works(sys.executable, "-c", "", **SOMEBODY),
    }
    always = ["usual", "no home", "ascii", "narrow", "no TMPDIR"]
    return [*always, *(name for name, is_so in (alone | possible).items() if is_so)]


FILL = 'mount -t tmpfs -o size=4k none "$TMPDIR" && head -c 4096 /dev/zero > "$TMPDIR/full"; exec "$@"'


@dataclass
class Line:
    """A command line, and in which surroundings it is typed."""

    seed: int
    ranks: int
    words: list[str]
    surroundings: str
    folder: Path
    said: str = field(default="", init=False)

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.surroundings}: -n {self.ranks} {' '.join(self.words)}\n{self.said[-2000:]}"

    @property
    def environment(self) -> dict[str, str]:
        found = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        found |= {"TMPDIR": str(self.folder / "tmp"), "MINIDIST_TEST": self.mark}
        match self.surroundings:
            case "no home":
                del found["HOME"]
            case "ascii":
                found["PYTHONIOENCODING"] = "ascii"
            case "narrow":
                found["COLUMNS"] = "40"
            case "no TMPDIR":
                found["TMPDIR"] = str(self.folder / "gone")
            case "nobody":
                found["HOME"] = "/nonexistent"
        return found

    @property
    def mark(self) -> str:
        return f"{self.folder}/{self.seed}"

    @property
    def command(self) -> list[str]:
        launcher = [find_mpiexec(), "-n", str(self.ranks)] if self.ranks else []
        within = {"full TMPDIR": ["unshare", "-m", "sh", "-c", FILL, "sh"], "no capabilities": NO_CAPABILITIES}
        return [*within.get(self.surroundings, []), *launcher, sys.executable, "-m", *self.words]


def line_of(seed: int, folder: Path) -> Line:
    """Surroundings, by turns, so that a few lines see them all; a program, a number of ranks, and its arguments."""
    draw = random.Random(seed)
    where = surroundings(False)[seed % len(surroundings(False))]
    possible = [program for program in programs() if where in surroundings(program.on_ranks)]
    chapters = [program for program in possible if program.on_ranks]
    program = draw.choice(chapters if chapters and draw.random() < 0.5 else possible)
    ranks = draw.randint(1, 4) if program.on_ranks else 0
    arguments = program.usual.split()
    if program.words == "minidist.mapreduce":
        job = draw.choice(("wordcount", "grep", "sort", "index", "nothing"))
        arguments = [job, draw.choice(FILES)]
    else:
        for action in program.parser._actions:
            if not action.option_strings and (action.nargs in (None, "+") or draw.random() < 0.5):
                valid = "config.json" if action.dest == "config" and draw.random() < 0.6 else None
                arguments.append(valid or value_of(action, draw))
    options = [a for a in program.parser._actions if a.option_strings and a.dest != "help" and a.dest != "run"]
    for action in draw.sample(options, min(draw.randint(0 if program.refused else 1, 4), len(options))):
        arguments.append(draw.choice(action.option_strings))
        if action.nargs != 0:
            arguments.append(value_of(action, draw))
    if program.words == "minidist.mapreduce" and "--output" not in arguments:
        arguments += ["--output", f"output{seed}"]
    if draw.random() < 0.05:
        arguments.insert(draw.randint(0, len(arguments)), draw.choice(("--help", "--nothing", "-", "")))
    if program.refused:
        arguments += program.refused.split()
    return Line(seed, ranks, [*program.words.split(), *arguments], where, folder)


def make_files(folder: Path) -> None:
    for name, content in TEXTS.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "unreadable").chmod(0)
    for name in ("folder", "tmp"):
        (folder / name).mkdir()
        (folder / name).chmod(0o777)
    os.mkfifo(folder / "fifo")
    for link, target in (("link", "text"), ("dangling", "nothing"), ("loop", "loop")):
        (folder / link).symlink_to(target)
    folder.chmod(0o777)


def files_of(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, and what is in its files."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = path.read_bytes() if plain else None
    return found


def of_mpich() -> set[str]:
    """What lies in /dev/shm for jobs under way."""
    return {name for name in segments() if "mpich" in name}


# ---- what is asked of it ---------------------------------------------------------------------------------------------


def run(line: Line) -> tuple[int, str]:
    """Its status, and what it said on standard error."""
    how: dict[str, Any] = {"stdout": subprocess.PIPE}
    if line.surroundings == "nobody":
        how |= SOMEBODY
    if line.surroundings == "closed stdout":
        how |= {"stdout": None, "preexec_fn": lambda: os.close(1)}
    if line.surroundings == "no reader":
        read, how["stdout"] = os.pipe()
        os.close(read)
    process = subprocess.Popen(
        line.command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=line.folder,
        env=line.environment,
        start_new_session=True,
        **how,
    )
    if line.surroundings == "no reader":
        os.close(how["stdout"])
    try:
        printed, line.said = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it hangs, {line}") from None
    finally:
        for left in processes_of(f"MINIDIST_TEST={line.mark}") if process.poll() is None else ():
            os.kill(left, signal.SIGKILL)
    assert process.returncode != 2 or not printed, f"it prints before it refuses: {printed[-300:]!r}, {line}"
    return process.returncode, line.said


def check(line: Line) -> None:
    make_files(line.folder)
    before, shared, began = files_of(line.folder), of_mpich(), os.times()
    status, said = run(line)
    ended = os.times()
    seconds = ended.children_user + ended.children_system - began.children_user - began.children_system
    errors = [text for text in said.splitlines() if text.startswith("minidist: error: ")]
    assert "Traceback" not in said, line
    assert status in (0, 1, 2, CANNOT_WRITE, READER_LEFT), f"status {status}, {line}"
    if status in (2, CANNOT_WRITE):
        assert (len(errors), len(said.splitlines())) == (1, 1), f"status {status}, {line}"
    else:
        assert len(errors) <= (status == 1), f"status {status}, {line}"
        lines = [text for text in said.splitlines() if not text.startswith("    ")]  # which goes on with the line above
        assert all(text.startswith("minidist: ") for text in lines), f"status {status}, {line}"
    assert seconds <= LONGEST * max(1, line.ranks), f"{seconds:.0f} s, {line}"
    check_nothing_is_left(line, status, before, shared)


def check_nothing_is_left(line: Line, status: int, before: dict[str, bytes | None], shared: set[str]) -> None:
    mark, new = f"MINIDIST_TEST={line.mark}", of_mpich() - shared
    assert wait_until(lambda: not processes_of(mark)), f"processes are left, {line}"
    assert wait_until(lambda: not new & of_mpich()), f"{new & of_mpich()} are left in /dev/shm, {line}"
    after = files_of(line.folder)
    left = [name for name in after if name.startswith(("tmp/", "gone"))]
    assert not left, f"{left} left in TMPDIR, {line}"
    if status == 2:
        changed = {name for name in before.keys() | after.keys() if before.get(name, b"-") != after.get(name, b"-")}
        assert not changed, f"{changed} changed, {line}"
    asked = {word.split("=")[-1].split("/")[0] for word in line.words}
    made = {name.split("/")[0] for name in after.keys() - before.keys()}
    assert "." in asked or made <= asked | {"nothing"}, f"{line}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that every user can reach."""
    made = Path(tempfile.mkdtemp(prefix="minidist-line-"))
    yield made
    shutil.rmtree(made)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("seed", range(SEED, SEED + USUAL))
def test_a_random_command_line(seed: int, folder: Path) -> None:
    check(line_of(seed, folder))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_many_random_command_lines(folder: Path) -> None:
    failed = []
    for seed in range(SEED + USUAL, SEED + ALL):
        line = line_of(seed, folder / str(seed))
        line.folder.mkdir()
        folder.chmod(0o755)
        try:
            check(line)
        except AssertionError as error:
            failed.append(str(error))
        shutil.rmtree(line.folder)
    assert not failed, "\n\n".join(failed)


def test_every_program_can_be_drawn() -> None:
    """Each with all that its --help lists; in these lines each of the surroundings comes, and each program."""
    for program in programs():
        has_none = program.words.split()[-1] in ("doctor", "lessons", "mutants", "recompute")
        assert (len(program.parser._actions) > 1) != has_none, program.words
    lines = [line_of(seed, Path()) for seed in range(SEED, SEED + ALL)]
    assert {line.surroundings for line in lines[:USUAL]} == {*surroundings(False)}
    words = [" ".join(line.words) + " " for line in lines]
    for program in programs():
        assert any(text.startswith(f"{program.words} ") for text in words), program.words
