"""Living without MPI: where Windows lacks what Unix has, and where pip has installed minidist and nothing else."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobs.without_mpi import NAMES, TEXT, TINY, lines_of
from programs import run_python

ROOT = Path(__file__).parents[1]


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def on_windows(lines: list[str], folder: Path) -> list[Ended]:
    """What `python -m LINE` ends with and prints, one after another, in a Python that lacks what Windows lacks."""
    (folder / "text").write_text(TEXT)
    words = [str(ROOT / "tests/jobs/windows.py"), json.dumps(lines)]
    done = run_python(*words, cwd=folder, env={"TMPDIR": str(folder)}, timeout=600)  # others sweep what has no lock
    assert done.returncode == 0, done.stderr
    return [Ended(*each) for each in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """How all chapters end, by line: one process runs them all."""
    lines = [line for name in NAMES for line in lines_of(name, 2)]
    return dict(zip(lines, on_windows(lines, tmp_path_factory.mktemp("windows")), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_chapter_runs_without_unix_and_without_mpi(name: str, ended: dict[str, Ended]) -> None:
    for line in lines_of(name, 2):
        assert ended[line].status == 0, ended[line].err
        assert ended[line].err == ""
        assert "✗" not in ended[line].out


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    return on_windows([*WORK, *REFUSED], tmp_path_factory.mktemp("windows"))


WORK = [
    *("minidist", "minidist --version", "minidist lessons", "minidist doctor", "minidist papers --paper zero"),
    "minidist explain --help", "minidist plan --model llama2-7b --ranks 64",
    "minidist bugs", "minidist bugs zero2-is-zero1", f"minidist.train {TINY} --steps 1 --json /dev/null",
    f"minidist.infinity {TINY} --steps 1 --ranks 2", "minidist.mapreduce sort text --output sorted",
]  # fmt: skip
REFUSED = ["minidist audit", "minidist.bench", "minidist.classroom grade lessons/04_ring_all_reduce"]


def test_commands_work_there_or_say_in_a_line_that_they_need_unix(commands: list[Ended]) -> None:
    found: dict[str, Any] = dict(zip([*WORK, *REFUSED], commands, strict=True))
    for line in WORK:
        assert found[line].status == 0, (line, found[line].err)
    for line in REFUSED:
        assert (found[line].status, found[line].err.count("\n")) == (2, 1), (line, found[line].err)
        assert "this needs Unix" in found[line].err
        assert "wsl --install" in found[line].err
