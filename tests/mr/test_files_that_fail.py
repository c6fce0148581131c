"""MapReduce on a full disk, and with an input or a folder that changes under it: one line, and nothing is half done."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from minidist import UsageError
from minidist.launch.launcher import mpiexec_for
from minidist.programs.chapter import find

TESTS = Path(__file__).parents[1]
TEXT = "".join(f"the {n} words of line {n * n}\n" for n in range(5000))  # 34 KB of regions in each of three maps
FULL = 74
# No file may be larger than that, as on a disk that has no more room. MPI, whose files are larger, has started by then.
LIMITED = """
import resource, runpy, sys
from minidist.mpi import over_mpi
most = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
runpy.run_module("minidist.mapreduce", run_name="__main__")
"""
# A small disk, on which the rank's own files are all there is.
SMALL = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o "size=$1k" none disk && shift && exec "$@"', "sh"]


def can_mount() -> bool:
    """Whether tests may mount a disk: root may, on Linux, and not in every container."""
    try:
        return subprocess.run([*SMALL[:2], "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
    except OSError:
        return False


def run(
    folder: Path,
    *arguments: str,
    n: int = 1,
    before: Sequence[str] = (),
    start: Sequence[str] = ("-m", "minidist.mapreduce"),
) -> tuple[int, str]:
    """The exit status of a line on n ranks, and what it says on standard error."""
    line = [*before, *mpiexec_for(n), sys.executable, *start, *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)
    return done.returncode, done.stderr


def check_line(status: int, said: str, *words: str) -> None:
    assert status == FULL, said
    assert said.startswith("minidist: error: "), said
    assert said.count("\n") == 1, said
    assert all(word in said for word in words), said


@pytest.mark.skipif(not can_mount(), reason="mounts a small disk")
@pytest.mark.parametrize(
    ("n", "size"),
    [
        *((1, size) for size in (4, 8, 40, 100)),  # KB
        (3, 8),
        *(pytest.param(3, size, marks=pytest.mark.slow) for size in (4, 12, 16, 24, 40, 70, 100, 130)),
    ],
)
def test_a_disk_that_is_full_is_named_in_one_line(n: int, size: int, tmp_path: Path) -> None:
    """Whatever comes first: a note, a worker's mapped file, a region, the output."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "text").write_text(TEXT)
    line = ["wordcount", "text", "--maps", "3", "--output", "disk/output"]
    status, said = run(tmp_path, *line, n=n, before=[*SMALL, str(size)])
    check_line(status, said, "cannot", "write disk/output/.mapreduce/", "No space left on device")


@pytest.mark.parametrize("most", [100, 3000, 10_000])
def test_what_was_done_on_a_full_disk_is_resumed(most: int, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    line = ["wordcount", "text", "--maps", "3", "--output", "output"]
    check_line(*run(tmp_path, *line, start=["-c", LIMITED, str(most)]), "File too large")
    resumed = most > 100  # not even the note of what the job is could be written
    assert (tmp_path / "output" / ".mapreduce").exists() == resumed
    assert run(tmp_path, *line, *["--resume"] * resumed) == (0, "")
    assert sum(path.read_text().count("\n") for path in (tmp_path / "output").glob("part-*")) > 5000


def test_an_error_of_the_disk_is_not_a_function_s(tmp_path: Path) -> None:
    """With --skip-bad, no record is left out for it; but what a function cannot open is the function's."""
    (tmp_path / "text").write_text(TEXT)
    line = ["--job", "jobs.mapreduce:Opens", "text", "--skip-bad", "1", "--output", "output"]
    status, said = run(tmp_path, *line)
    assert (status, "the key" in said, "No such file or directory: 'absent'" in said) == (1, True, True), said


def test_an_input_that_becomes_shorter_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    line = ["--job", "jobs.mapreduce:Shortens", "text", "--maps", "1", "--memory", "0.01", "--output", "output"]
    check_line(*run(tmp_path, *line), "map 0 failed on worker 0: cannot read text: it has become shorter")


@pytest.mark.parametrize("name", ["worker-1", "worker-1.at", "worker-7"])
@pytest.mark.parametrize("local", [False, True])
def test_a_link_in_the_place_of_a_worker_s_folder_is_refused(name: str, local: bool, tmp_path: Path) -> None:
    """Between a kill and --resume; nothing where it leads to is touched."""
    (tmp_path / "text").write_text(TEXT)
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    line = ["wordcount", f"{tmp_path}/text", "--output", f"{tmp_path}/output"]
    if local:
        (tmp_path / "local").mkdir()
        line += ["--local", f"{tmp_path}/local"]
    made = find("mapreduce")
    comm = type("Two", (), {"rank": 0, "size": 2})()
    plan = made.prepared(line, comm).plan
    plan.token = plan.make_folder()
    plan.locals.mkdir(exist_ok=True)
    (plan.locals / name).symlink_to(other)
    with pytest.raises(UsageError, match=f"{name} is a link, and not this job's; delete it"):
        made.prepared([*line, "--resume"], comm)
    assert [path.name for path in other.iterdir()] == ["kept"]
