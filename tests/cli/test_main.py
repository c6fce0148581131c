"""What a newcomer types first: `python -m minidist`, and make."""

import os
import pty
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from minidist import Finished, UsageError, __version__
from minidist.__main__ import CHAPTERS, USUAL, contents
from minidist.cli.options import in_one_process
from programs import run_python
from tables import table

ROOT = Path(__file__).parents[2]


def minidist(*arguments):
    return run_python("-m", "minidist", *arguments, cwd=ROOT)


def test_lists_every_chapter_on_a_screen():
    run = minidist()
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    for name, paper, launch in CHAPTERS:
        assert f"{name:18}{paper}" in lines
        assert launch in run.stdout or (launch == USUAL.format(name) and USUAL.format("NAME") in run.stdout)
    assert len(lines) < 30
    assert max(map(len, lines)) <= 80
    assert "\033" not in run.stdout


SHORT = "import sys; sys.argv[0] = '/bin/minidist'; from minidist.__main__ import run; sys.exit(run())"


@pytest.mark.parametrize(
    "line", ["", "--help", "no-such-word", "inspect", *(f"{command} --help" for command in ("to-fp32", "plan", "bugs"))]
)
def test_each_of_its_two_names_is_the_one_that_it_uses(line):
    """`python -m minidist`, and the command that pip installs."""
    long = minidist(*line.split())
    short = subprocess.run([sys.executable, "-c", SHORT, *line.split()], cwd=ROOT, capture_output=True, text=True)
    assert short.returncode == long.returncode == (2 if line in ("no-such-word", "inspect") else 0)
    for told, name, other in ((short, "minidist", "python -m minidist"), (long, "python -m minidist", " minidist")):
        text = told.stdout + told.stderr
        assert f"{name} " in text
        assert f"{other} " not in text.replace(name, "")
    if line == "--help":
        shorter = len("python -m ")
        assert short.stdout.splitlines() == [text[shorter:] for text in long.stdout.splitlines()]


@pytest.mark.parametrize("name", ["zero3", "train", "parallel3d"])
def test_a_chapter_without_its_dot_is_told_its_line(name):
    run = minidist(name, "--steps", "3")
    launch = next(chapter.launch for chapter in CHAPTERS if chapter.name == name)
    said = f"minidist: error: a chapter is started by a line of its own: {launch}\n"
    assert (run.returncode, run.stdout, run.stderr) == (2, "", said)


@pytest.mark.parametrize(
    ("lacks", "flags", "chapter", "says"),
    [
        ("numpy", ["-S"], "train", "numpy is not installed for"),  # -S: without the folder of what is installed
        ("numpy", ["-S"], "zero3", "run make setup"),
        ("mpi4py", [], "ring", "mpi4py is not installed for"),
        ("MPI", [], "mapreduce", "mpi4py finds no MPI library: python -m minidist doctor"),
    ],
)
def test_a_chapter_says_in_a_line_what_is_not_installed(tmp_path, lacks, flags, chapter, says):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    if lacks == "MPI":
        env["MPI4PY_LIBMPI"] = "/no/libmpi.so"
    elif lacks == "mpi4py":
        (tmp_path / "mpi4py.py").write_text("raise ModuleNotFoundError(\"No module named 'mpi4py'\", name='mpi4py')")
    for rank, lines in (("0", 1), ("1", 0)):  # mpirun starts it several times
        command = [sys.executable, *flags, "-m", f"minidist.{chapter}"]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**env, "PMI_RANK": rank})
        assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", lines)
        assert (says in run.stderr) == (rank == "0")


UNTOUCHED = """
import signal, sys
before = signal.getsignal(signal.SIGINT), sys.excepthook
import minidist, minidist.zero3, minidist.mpi.run
print((signal.getsignal(signal.SIGINT), sys.excepthook) == before)
"""


@pytest.mark.parametrize("program", [["-c", UNTOUCHED], ["program.py"], ["-m", "program"], ["-m", "package"]])
@pytest.mark.parametrize("arguments", [[], ["-m", "minidist.zero3"]])  # of a program, they are not Python's
def test_an_import_leaves_signals_and_errors_to_the_program(tmp_path, program, arguments):
    (tmp_path / "program.py").write_text(UNTOUCHED)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text(UNTOUCHED)
    (tmp_path / "package/__main__.py").touch()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, *program, *arguments]
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("True\n", "")


def test_python_knows_its_module_in_both_spellings(tmp_path):
    for words in (["-m", "minidist.zero3"], ["-mminidist.zero3"]):
        run = subprocess.run([sys.executable, "-S", *words], cwd=ROOT, capture_output=True, text=True)
        assert (run.returncode, run.stderr.count("\n")) == (2, 1)
        assert "numpy is not installed for" in run.stderr


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_launch_line_names_a_module_that_exists(chapter):
    assert f"python -m minidist.{chapter.name}" in chapter.launch
    assert find_spec(f"minidist.{chapter.name}")


def for_nobody(*arguments):
    """Python, writing to a reader who has left before the first line."""
    read, write = os.pipe()
    os.close(read)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with os.fdopen(write, "w") as closed:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=ROOT, env=env, stdout=closed, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "program", ["minidist", "minidist.zero3 --help", "minidist.train --help", "minidist.bench --help"]
)
def test_a_reader_who_leaves_early_sees_no_error(program):
    run = for_nobody("-m", *program.split())
    assert (run.returncode, run.stderr) == (0, "")


def test_list_loads_no_heavy_package():
    watch = "import sys, minidist.__main__ as m; m.main([]); print(*sys.modules, file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", watch], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "minidist" in run.stderr.split()
    assert not {"numpy", "mpi4py", "matplotlib", "rich"} & set(run.stderr.split())


@pytest.mark.parametrize(("no_color", "bold"), [("", True), ("1", False)])
def test_names_are_bold_at_a_terminal(monkeypatch, no_color, bold):
    ours, theirs = pty.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setenv("TERM", "xterm")
        assert ("\033[1m" in contents()) == bold


def test_help_and_version():
    assert minidist("--version").stdout == f"minidist {__version__}\n"
    for option in ("-h", "--help"):
        run = minidist(option)
        assert run.returncode == 0
        assert "python -m minidist doctor" in run.stdout


@pytest.mark.parametrize("arguments", [("docter",), ("doctor", "now"), ("--verbose",), ("",)])
def test_unknown_argument_is_one_line(arguments):
    run = minidist(*arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.count("\n") == 1
    assert repr(" ".join(arguments)) in run.stderr


@pytest.mark.parametrize(
    ("outcome", "status", "out", "err"),
    [
        (UsageError("no such\n  thing"), 2, "", "minidist: error: no such thing\n"),
        (Finished("all of it"), 0, "all of it\n", ""),
        (KeyboardInterrupt(), 130, "", "minidist: interrupted\n"),
    ],
)
def test_a_program_of_one_process_ends_in_a_line_and_a_status(monkeypatch, capsys, outcome, status, out, err):
    def work():
        raise outcome

    assert in_one_process(work) == status
    assert capsys.readouterr() == (out, err)
    monkeypatch.setenv("PMI_RANK", "1")  # the second process of an mpirun that should have been left away
    assert in_one_process(work) == status
    assert capsys.readouterr() == ("", "")


PROGRAM = """
import sys
from minidist import Finished, UsageError
from minidist.cli.options import in_one_process

def work():
    print("one line")
    {}

sys.exit(in_one_process(work))
"""


@pytest.mark.parametrize(("how", "status", "err"), table(__file__, "a_reader_who_has_left"))
def test_a_reader_who_has_left_changes_no_status_of_work_that_is_done(how, status, err):
    run = for_nobody("-c", PROGRAM.format(how))
    assert (run.returncode, run.stderr) == (status, err)


def test_a_program_of_one_process_hands_its_status_and_its_mistakes_on():
    assert (in_one_process(lambda: None), in_one_process(lambda: 1)) == (0, 1)
    with pytest.raises(ZeroDivisionError):
        in_one_process(lambda: 1 // 0)
    with pytest.raises(SystemExit, match="3"):
        in_one_process(lambda: sys.exit(3))


def test_every_place_names_the_same_version():
    assert re.search(r"^## \[(\d.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == __version__
    assert re.search(r"^version: (.+)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == __version__


# ---- make -----------------------------------------------------------------------------------------------------------


def make(*arguments):
    # A make above us (`make test`) would hand down its own options.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, env=environment)


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


@needs_make
def test_make_alone_lists_every_target():
    targets = re.search(r"^\.PHONY: (.+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    listed = make().stdout
    assert re.findall(r"^make ([\w-]+) +\S", listed, re.MULTILINE) == targets
    assert max(map(len, listed.splitlines())) <= 80


@needs_make
@pytest.mark.parametrize(
    ("lacks", "says"),
    [("version_info", "minidist needs Python 3.11 or later"), ("ensurepip", "apt install python3-venv")],
)
def test_make_says_what_is_wrong_with_a_python(tmp_path, lacks, says):
    """`lacks`: the question to which this Python answers no, as an old one or one of Debian's without venv does."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\ncase "$*" in *{lacks}*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    run = make("setup", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert run.returncode != 0
    complaint, *rest = run.stderr.splitlines()
    assert says in complaint
    assert str(python) in complaint
    assert len(rest) == 1  # make's own "*** Error 1"
    assert not (tmp_path / "venv").exists()
