"""Outputs that have no Greek, folders that may not be looked into, disks that are full, names that go on and on."""

import ctypes
import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from classroom.tiny import RIGHT, classroom, make_lessons
from minidist.contents import CHAPTERS
from minidist.mpi.output import STAND_IN, STAND_INS, in_a_line
from programs import run_chapter, run_module
from sampling import shard_of_this_run
from tables import table

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "minidist" / "deepspeed" / "zero3.json"
SMALL = "--steps 1 --layers 4 --width 8 --heads 4 --context 8 --batch 8"


def run(line: str, ranks: int = 0, before: Callable[[], None] | None = None, **environment: Any) -> Any:
    """`python -m LINE`. before: what a process does before it becomes that."""
    return run_module(line, ranks, preexec_fn=before, errors="backslashreplace", env=environment)


# ---- encodings -------------------------------------------------------------------------------------------------------

ALONE = {
    f"minidist explain {CONFIG}": "2Psi/N",
    "minidist recompute": "log2",
    "minidist.pipeline --draw all": "...",
    "minidist.bench --table": "<=",
    "minidist lessons": "needs",
    "minidist.zero3 --help": "--model",
}


LONG_ONES = {"minidist recompute"}


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.slow)])
@pytest.mark.parametrize("line", [pytest.param(line, marks=[pytest.mark.slow] * (line in LONG_ONES)) for line in ALONE])
def test_what_an_encoding_lacks_is_spelled_out(line: str, encoding: str) -> None:
    done = run(line, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert ALONE[line] in done.stdout
    assert "\\u" not in done.stdout


@pytest.mark.parametrize(
    "name",
    [name if name in ("mapreduce", "zero1") else pytest.param(name, marks=pytest.mark.slow) for name, *_ in CHAPTERS],
)
def test_the_report_of_a_chapter_in_ascii(name: str, tmp_path: Path) -> None:
    options = {"mapreduce": f"wordcount {ROOT / 'README.md'} --output {tmp_path / 'out'}", "ring": ""}.get(name, SMALL)
    ranks, environment = 0 if name == "train" else 4, {"PYTHONIOENCODING": "ascii"}
    done = run_chapter(f"{name} {options}", ranks, errors="backslashreplace", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok\n" in done.stdout or name == "train"
    assert done.stdout.isascii()


def test_a_grade_is_not_lost(tmp_path: Path) -> None:
    make_lessons(tmp_path)
    (tmp_path / "right.py").write_text(RIGHT)
    done = classroom(tmp_path, "grade", "lessons/01_tiny", "--submission", "right.py", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2.5 of 2.5 points" in done.stdout
    assert done.stdout.isascii()


def test_the_locale_does_not_matter() -> None:
    """Of files that are minidist's own."""
    plain: dict[str, Any] = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for line in ("minidist lessons", f"minidist explain {CONFIG}", "minidist"):
        done = run(line, **plain)
        assert (done.returncode, done.stderr) == (0, ""), line


def test_stand_ins() -> None:
    said = "✓ 16Ψ/N ≤ 2³⁰, “naïve” 語: s²"
    assert said.encode("ascii", STAND_IN) == b'ok 16Psi/N <= 2^30, "naive" \\u8a9e: s^2'
    assert all(word.isascii() for word in STAND_INS.values())


# ---- names that go on and on -----------------------------------------------------------------------------------------

LONG = "n" * 3000


LONG_LINES = [line.replace("LONG", LONG) for line in table(__file__, "long_lines")]


def check_shortened(line: str) -> None:
    done = run(line)
    assert (done.returncode, done.stdout) == (2, ""), line
    assert done.stderr.count("\n") == 1, line
    assert len(done.stderr) < 700, line


def test_long_arguments_are_shortened() -> None:
    for line in shard_of_this_run(LONG_LINES, 4):
        check_shortened(line)


@pytest.mark.slow
@pytest.mark.parametrize("line", LONG_LINES, ids=lambda line: line.replace(LONG, "LONG"))
def test_every_long_argument_is_shortened(line: str) -> None:
    check_shortened(line)


def test_a_line_keeps_what_a_path_needs() -> None:
    path = "/".join(["folder" * 10] * 4)
    assert in_a_line(f"there is\n no {path}") == f"there is no {path}"


# ---- help ------------------------------------------------------------------------------------------------------------

COMMANDS = ["inspect", "to-fp32", "explain", "plan", "papers", "recompute", "audit", "mutants", "bugs"]
COMMANDS += ["lessons", "doctor"]
HELPS = [f"minidist {command}" for command in COMMANDS]
HELPS += ["minidist.bench", "minidist.classroom", "minidist.classroom.work", "minidist.bench.picture"]
HELPS += [f"minidist.classroom {command}" for command in ("grade", "class", "release")]
HELPS += ["minidist.classroom.autograder", "minidist.deepspeed"]


def check_help(line: str, option: str) -> None:
    done = run(f"{line} {option}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: python -m {line}")
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_commands_have_help() -> None:
    for line in shard_of_this_run(HELPS, 4):
        check_help(line, "--help")


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("line", HELPS)
def test_every_command_has_help(line: str, option: str) -> None:
    check_help(line, option)


# ---- what may not be read --------------------------------------------------------------------------------------------


def without_privileges() -> None:
    """Let a root's process be refused like any other: it gives up what overrides permissions."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


DENIED = [line.replace("SMALL", SMALL) for line in table(__file__, "denied")]


@pytest.mark.skipif(sys.platform != "linux", reason="takes root's privileges away")
def test_what_may_not_be_read_is_not_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_lessons(tmp_path)
    Path("text").write_text("to be or not to be, that is the question. " * 50)
    assert run(f"minidist.train {SMALL} --data text --save run").returncode == 0
    Path("no").mkdir()
    Path("hidden").mkdir()
    for file in ("no/file", "unreadable.py", "hidden/test_hidden.py"):
        Path(file).write_text("")
        Path(file).chmod(0)
    for folder in ("no", "run/step000001"):
        Path(folder).chmod(0)
    try:
        for line in DENIED:
            done = run(line, before=without_privileges)
            assert (done.returncode, done.stdout) == (2, ""), line
            assert done.stderr.count("\n") == 1, line
            assert "Permission denied" in done.stderr, line
        Path("run/step000001").chmod(0o700)
        Path("run").chmod(0o100)
        done = run("minidist inspect run", before=without_privileges)
        assert (done.returncode, done.stderr) == (2, "minidist: error: run cannot be read: Permission denied\n")
    finally:
        for folder in ("no", "run", "run/step000001"):
            Path(folder).chmod(0o700)


# ---- a full disk -----------------------------------------------------------------------------------------------------


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@pytest.mark.parametrize("there", [False, True])
def test_half_a_release_is_not_left(there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if there:
        (tmp_path / "out").mkdir()
    shutil.copytree(ROOT / "lessons" / "04_ring_all_reduce", tmp_path / "lessons" / "04_ring_all_reduce")
    monkeypatch.chdir(tmp_path)
    done = run("minidist.classroom release out", before=small_files)
    assert (done.returncode, done.stderr) == (2, "minidist: error: out cannot be written to: File too large\n")
    assert os.path.isdir("out") == there
    assert not there or not os.listdir("out")
