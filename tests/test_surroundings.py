"""What a program stands on is not as it should be: the folder it is in, its environment, its memory. One line each."""

import os
import resource
from pathlib import Path

import pytest

from programs import run_module

ROOT = Path(__file__).parents[1]
TEXT = ROOT / "minidist" / "text" / "python_help.txt"
SMALL = "--steps 1 --layers 1 --width 8 --heads 2 --context 8 --batch 8"


def refused(
    ranks: int, line: str, folder: Path, environment: dict[str, str] | None = None, memory: int | None = None
) -> str:
    """The line in which a program refuses. memory: bytes that each process may have."""

    def surroundings() -> None:
        if not os.listdir():
            os.rmdir(folder)
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    done = run_module(line, ranks, cwd=folder, env=environment, preexec_fn=surroundings)
    assert done.returncode == 2, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if not line.startswith("[mpiexec")]  # which minds the folder
    assert said.startswith("minidist: error: ")
    return said


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        (0, f"minidist.train {SMALL} --save run"),
        (2, f"minidist.mapreduce wordcount {TEXT}"),
        pytest.param(2, "minidist.ring", marks=pytest.mark.slow),
    ],
)
def test_a_working_folder_that_has_been_deleted(ranks: int, line: str, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    assert "the working directory has been deleted" in refused(ranks, line, tmp_path / "gone")


@pytest.mark.parametrize("line", [f"minidist.train {SMALL}", f"minidist.zero1 {SMALL}"])
def test_a_number_of_ranks_that_is_none(line: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "MPI_LOCALNRANKS is 'zz'" in refused(0, line, tmp_path, {"MPI_LOCALNRANKS": "zz"})


@pytest.mark.parametrize(
    ("name", "line"),
    [("MINIDIST_AUDIT", f"minidist.zero1 {SMALL}"), ("MINIDIST_AUDIT_FILES", f"minidist.mapreduce wordcount {TEXT}")],
)
def test_an_audit_without_a_folder(name: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        assert f"{name} names {path}, which is no folder" in refused(2, line, tmp_path, {name: str(path)})
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("ranks", "line"),
    [(0, "minidist.train --steps 1 --width 512 --batch 64"), (2, "minidist.zero1 --steps 1 --width 512 --batch 64")],
)
@pytest.mark.parametrize("megabytes", [300, *(pytest.param(size, marks=pytest.mark.slow) for size in (20, 110, 210))])
def test_too_little_memory(ranks: int, line: str, megabytes: int, tmp_path: Path) -> None:
    """For what trains, for NumPy, for what Python itself loads."""
    (tmp_path / "file").touch()
    assert "memory" in refused(ranks, line, tmp_path, memory=megabytes * 10**6)
