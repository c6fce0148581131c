"""Outputs that the user names: a link is followed and stays, a stream is written to. All are written in one place."""

import os
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from programs import run_python

ROOT = Path(__file__).parents[1]
SMALL = "--steps 2 --layers 1 --width 8 --heads 2 --context 8 --batch 8"
TEXT = "to be or not to be, that is the question. " * 50


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text(TEXT)
    return tmp_path


def train(*arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """how: of subprocess.run, such as where standard output goes."""
    line = ["-m", "minidist.train", *SMALL.split(), "--data", "text", *arguments]
    done: subprocess.CompletedProcess[str] = run_python(*line, **{"stderr": subprocess.PIPE, **how})
    return done


def test_links_stay_and_what_they_lead_to_is_replaced(folder: Path) -> None:
    """Links to a file, through another link, and to a file that is not there yet; a picture, a model and a report."""
    (folder / "far").mkdir()
    (folder / "far" / "report").write_text("older")
    (folder / "far" / "report").chmod(0o640)
    for link, target in (("json", "near"), ("near", "far/report"), ("export", "far/model"), ("plot.png", "far/plot")):
        (folder / link).symlink_to(target)
    done = train("--json", "json", "--export", "export", "--memory-plot", "plot.png", stdout=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, "")
    for link in ("json", "near", "export", "plot.png"):
        assert (folder / link).is_symlink()
    assert (folder / "far" / "report").read_text().startswith("{")
    assert (folder / "far" / "report").stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir("far")) == ["model", "plot", "report"]
    assert train("--load", "export", "--steps", "3", stdout=subprocess.DEVNULL).returncode == 0


def test_standard_output_by_a_link_is_written_to(folder: Path) -> None:
    """As `--json /dev/stdout > log`: the link, which as root was everybody's, stays, and so does what was printed."""
    (folder / "out").symlink_to("/proc/self/fd/1")
    with open("log", "w") as log:
        log.write("before\n")
        log.flush()
        done = train("--json", "out", "--sample", "5", stdout=log)
        log.seek(0, os.SEEK_END)
        log.write("after\n")
    assert (done.returncode, done.stderr, (folder / "out").is_symlink()) == (0, "", True)
    printed = (folder / "log").read_text()
    assert "\0" not in printed
    parts = ["before\n", "step ", '\n{\n "format": 1,\n "chapter": "train"', "The model writes:", "after\n"]
    assert sorted(parts, key=printed.index) == parts


def test_streams_are_written_to(folder: Path) -> None:
    """A pipe with a reader, a device, standard output as a pipe; the report and the model."""
    os.mkfifo("pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((folder / "pipe").read_bytes()), daemon=True)
    reader.start()
    (folder / "null").symlink_to("/dev/null")
    done = train("--json", "pipe", "--export", "null", stdout=subprocess.DEVNULL)
    reader.join(10)
    assert (done.returncode, done.stderr) == (0, "")
    assert read[0].startswith(b"{")
    assert (folder / "pipe").is_fifo()
    assert (folder / "null").is_symlink()
    assert sorted(os.listdir()) == ["null", "pipe", "text"]  # and no shards beside them

    (folder / "out").symlink_to("/proc/self/fd/1")
    exported = train("--json", "null", "--export", "out", stdout=subprocess.PIPE, encoding="latin-1")
    assert (exported.returncode, exported.stderr) == (0, "")
    assert '"__metadata__"' in exported.stdout
    assert (folder / "out").is_symlink()


def test_ranks_write_to_streams_and_at_the_end_of_links(folder: Path) -> None:
    """Four outputs, two of them through links to the rank's standard output, which is a pipe to mpirun."""
    for link, target in (("out", "/proc/self/fd/1"), ("trace", "far"), ("plot.png", "/proc/self/fd/1")):
        (folder / link).symlink_to(target)
    outputs = "--json out --export out --trace trace --memory-plot plot.png"
    line = ["-m", "minidist.pipeline", *SMALL.split(), *outputs.split(), "--data", "text"]
    done = run_python(*line, ranks=2, encoding=None)
    assert (done.returncode, done.stderr) == (0, b"")
    for content in (b'"chapter": "pipeline"', b"__metadata__", b"\x89PNG", b"parameters"):
        assert content in done.stdout
    assert (folder / "far").read_text().startswith("{")
    assert sorted(os.listdir()) == ["far", "out", "plot.png", "text", "trace"]
    assert all((folder / link).is_symlink() for link in ("out", "trace", "plot.png"))


def test_a_pipe_that_nothing_reads_is_refused_before_work_starts(folder: Path) -> None:
    os.mkfifo("pipe")
    done = train("--json", "pipe", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "minidist: error: --json pipe: cannot write there: no process reads this pipe\n"


def test_a_device_that_is_full_is_a_line_at_the_end(folder: Path) -> None:
    (folder / "full").symlink_to("/dev/full")
    done = train("--json", "full", stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (74, "minidist: error: cannot write full: No space left on device\n")


# ---- one place -------------------------------------------------------------------------------------------------------

RENAMES = {
    "minidist/system/files.py",
    "minidist/checkpoints/checkpoint.py",
    "minidist/mr/disk.py",
}  # the place; and two for folders


def test_files_are_written_whole_in_one_place() -> None:
    renaming = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "minidist").rglob("*.py")
        if re.search(r"\bos\.(replace|rename)\(", file.read_text())
    }
    assert renaming == RENAMES
