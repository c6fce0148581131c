"""No terminal, a strange one, a closed or a full standard output: plain lines or silence, and the work is done."""

import errno
import os
import pty
import select
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from minidist.cli import progress

ROOT = Path(__file__).parents[2]
SMALL = ["--steps", "2", "--layers", "1", "--width", "8", "--heads", "1", "--context", "8", "--batch", "2"]
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
CANNOT = "minidist: error: cannot write to standard output: No space left on device\n"


def shell(redirection, *arguments, unbuffered=""):
    """`python -m ARGUMENTS REDIRECTION`: what is left of stdout and stderr, and the exit status."""
    command = f'"$@" {redirection}'
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    run = [sys.executable, "-m", *arguments]
    return subprocess.run(["sh", "-c", command, "sh", *run], env=env, capture_output=True, text=True)


HINT = "One rank. For more: mpirun -n 4 python -m minidist.zero3, or --ranks 4\n"
PROGRAMS = [
    ("minidist",),
    ("minidist.train", *SMALL),
    ("minidist.zero3", *SMALL),  # without mpirun: it ends through MPI's own `run`
    ("minidist.ring", "--size", "10", "--json", "-", "--ranks", "1"),
    ("minidist.pipeline", "--draw", "gpipe", "-p", "2", "-m", "2"),
]


@needs_full
@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[0])
def test_a_full_standard_output_is_one_line_and_a_status(program, unbuffered):
    run = shell(">/dev/full", *program, unbuffered=unbuffered)
    assert (run.returncode, run.stdout, run.stderr.removeprefix(HINT)) == (74, "", CANNOT)


REDIRECTIONS = (">&-", ">&- 2>&-", "<&- >/dev/null", "</dev/null >/dev/null 2>&-")


@pytest.mark.parametrize(
    ("program", "redirection"),
    [  # in every run two to each program, in turn
        pytest.param(program, words, marks=[pytest.mark.slow] * ((i + j) % 2), id=f"{program[0]}-{words}")
        for i, program in enumerate(PROGRAMS)
        for j, words in enumerate(REDIRECTIONS)
    ],
)
def test_a_closed_one_is_silence(program, redirection):
    run = shell(redirection, *program)
    assert (run.returncode, run.stdout, run.stderr.removeprefix(HINT)) == (0, "", "")


@needs_full
def test_the_work_is_done_all_the_same(tmp_path):
    run = shell(">/dev/full", "minidist.train", *SMALL, "--export", str(tmp_path / "model"), "--sample", "9")
    assert (run.returncode, run.stderr) == (74, CANNOT)
    whole = shell("", "minidist.train", *SMALL, "--export", str(tmp_path / "same"))
    assert whole.returncode == 0
    saved, same = load_file(tmp_path / "model"), load_file(tmp_path / "same")
    assert saved.keys() == same.keys()
    assert all(np.array_equal(saved[name], same[name]) for name in same)


@needs_full
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", ">&-", ">/dev/full"])
def test_a_usage_error_keeps_its_status(redirection):
    run = shell(redirection, "minidist.train", "--wrong")
    said = "minidist: error: unrecognized arguments: --wrong (--help lists the options)\n"
    assert (run.returncode, run.stdout, run.stderr) == (2, "", "" if redirection.startswith("2") else said)


# ---- terminals ------------------------------------------------------------------------------------------------------


@contextmanager
def terminals(monkeypatch):
    """Two terminals; standard output is the first one. [path of each]; and what reads from the first."""
    monkeypatch.setenv("TERM", "xterm")
    (ours, first), (theirs, second) = pty.openpty(), pty.openpty()
    with os.fdopen(first, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        yield [os.ttyname(first), os.ttyname(second)], ours
        monkeypatch.undo()
    for descriptor in (ours, theirs, second):
        os.close(descriptor)


def test_ones_own_terminal_is_found(monkeypatch):
    with terminals(monkeypatch) as ([own, _], _):
        screen = progress.terminal()
        assert screen is not None
        assert os.ttyname(screen.fileno()) == own
        screen.close()


def refuse(number):
    def ttyname(descriptor):
        raise OSError(number, os.strerror(number))

    return ttyname


STRANGE = {
    "of another container": lambda paths: {"ttyname": refuse(errno.ENODEV)},
    "of the same name elsewhere": lambda paths: {"ttyname": lambda descriptor: paths[1]},
    "not there": lambda paths: {"ttyname": lambda descriptor: "/dev/pts/none"},
    "not to be opened": lambda paths: {"ttyname": lambda descriptor: "/"},  # root may open any terminal
    "dumb": lambda paths: {"TERM": "dumb"},
    "unknown": lambda paths: {"TERM": None},
}


@pytest.mark.parametrize("kind", STRANGE)
def test_at_a_strange_terminal_progress_is_plain_lines(monkeypatch, kind):
    with terminals(monkeypatch) as (paths, ours):
        for name, value in STRANGE[kind](paths).items():
            if name == "ttyname":
                monkeypatch.setattr(os, name, value)
            elif value is None:
                monkeypatch.delenv(name)
            else:
                monkeypatch.setenv(name, value)
        assert progress.terminal() is None
        shown = progress.Progress(2, shown=True)
        shown.update(1, 3.5, 20, 512.0)
        shown.close()
        line = progress.StatusLine(shown=True)
        line.show("half of it", 0.5)
        line.close()
        said = b""
        while not said.endswith(b"it\r\n") and select.select([ours], [], [], 10)[0]:
            said += os.read(ours, 1000)
        assert said == b"step 1/2  loss 3.500  20 ms  loss scale 512\r\nhalf of it\r\n"


@needs_full
def test_a_terminal_that_goes_away_ends_nothing(monkeypatch):
    with terminals(monkeypatch):
        bar, line = progress.Progress(2, shown=True), progress.StatusLine(shown=True)
        assert bar.screen is not None
        assert line.screen is not None
        for screen in (bar.screen, line.screen):
            with open("/dev/full", "w") as full:
                os.dup2(full.fileno(), screen.fileno())
        bar.update(1, 3.5, 20, 1.0)
        line.show("half of it", 0.5)
        bar.close()
        line.close()
