"""Files that a run leaves: whole, at the right place, and nothing beside them."""

import multiprocessing
import os
import resource
import socket
from pathlib import Path

import pytest

from minidist import UsageError
from minidist.bench import __main__ as bench
from minidist.cli.paths import check_writable, write_output
from minidist.programs.chapter import find
from minidist.system.files import write_whole
from minidist.train import Alone


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_nobody_else_is_overwritten(tmp_path):
    """Not a file of the user's that is called as a temporary one might be, nor what a planted link leads to."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "a.json.tmp").symlink_to(tmp_path / "victim")
    (tmp_path / "b.json.tmp").write_text("mine")
    (tmp_path / "c.json.tmp").mkdir()
    for name in ("a.json", "b.json", "c.json"):
        check_writable("--json", str(tmp_path / name))
        write_whole(str(tmp_path / name), b"report")
        assert (tmp_path / name).read_bytes() == b"report"
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "b.json.tmp").read_text() == "mine"
    assert names(tmp_path) == ["a.json", "a.json.tmp", "b.json", "b.json.tmp", "c.json", "c.json.tmp", "victim"]


def test_a_link_of_a_name_that_minidist_makes_up_is_replaced(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out").symlink_to("victim")
    write_whole(str(tmp_path / "out"), b"report")
    assert not (tmp_path / "out").is_symlink()
    assert (tmp_path / "victim").read_text() == "precious"


def write_many(path: str, letter: bytes) -> None:
    for _ in range(100):
        write_whole(path, 100_000 * letter)


def test_of_several_writers_each_writes_a_whole_file(tmp_path):
    path = str(tmp_path / "report")
    write_whole(path, b"")
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_many, args=(path, letter)) for letter in (b"a", b"b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        seen = Path(path).read_bytes()
        assert seen in (b"", 100_000 * b"a", 100_000 * b"b")
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert names(tmp_path) == ["report"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="a folder that takes no file, not even root's, is Linux's")
def test_standard_output_asks_for_no_folder_that_can_be_written(monkeypatch):
    """Every program that writes its report there."""
    monkeypatch.chdir("/proc/self")
    with pytest.raises(UsageError, match="cannot write there"):
        check_writable("--json", "report")
    assert find("ring").prepared(["--json", "-"], Alone()).json == "-"
    assert bench.prepare(["--json", "-"])[1].json == "-"
    assert find("train").job(["--json", "-"], ranks=1).files.quiet


def test_after_a_failure_all_is_as_it_was(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"older")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # as a disk that has no more room
    try:
        with pytest.raises(OSError, match="too large"):
            write_whole(str(path), bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (names(tmp_path), path.read_bytes()) == (["model"], b"older")


def test_the_mode_is_that_of_the_file_before_or_the_usual_one(tmp_path):
    older, newer = tmp_path / "older", tmp_path / "newer"
    older.touch(mode=0o600)
    mask = os.umask(0o027)
    try:
        for path in (older, newer):
            write_whole(str(path), b"x")
    finally:
        os.umask(mask)
    assert (older.stat().st_mode & 0o777, newer.stat().st_mode & 0o777) == (0o600, 0o640)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing/a", "there is no folder"),
        ("folder", "it is not a file"),
        ("folder/", "it is not a file"),
        ("", "it is not a file"),
        ("pipe", "no process reads this pipe"),
        ("socket", "it is not a file"),
        ("file/a", "there is no folder"),
        (300 * "a", "File name too long"),
        (2500 * "a/", "there is no folder"),
    ],
)
def test_where_nothing_can_be_written(path, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    with pytest.raises(UsageError, match=reason) as error:
        check_writable("--save", path)
    assert str(error.value).startswith(f"--save {path}: ")
    assert names(tmp_path) == ["file", "folder", "pipe", "socket"]


def test_where_something_can_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("dangling").symlink_to("nowhere")
    for path in ("a", 255 * "a", 60 * "ж", "./a", str(tmp_path / "a"), "dangling"):
        check_writable("--save", path)
        assert names(tmp_path) == ["dangling"]
        write_output(path, b"x")
        assert Path(path).read_bytes() == b"x"
        os.unlink(os.path.realpath(path))
        assert names(tmp_path) == ["dangling"]
