"""Serial training as a program: what it refuses before the work, and what it does about what goes wrong in it."""

import json
import os
import resource
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from alone import train_alone
from programs import run_python
from tables import table

ROOT = Path(__file__).parents[1]
SMALL = "--steps 2 --layers 1 --width 8 --heads 1 --context 8 --batch 2 --lr 0.01".split()  # noqa: SIM905


def run(folder, *arguments, limit=None):
    """`python -m minidist.train ARGUMENTS` in a folder; no file of it may get larger than the limit."""

    def limited():
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return run_python("-m", "minidist.train", *SMALL, *arguments, cwd=folder, preexec_fn=limited)


@pytest.fixture
def refusal(tmp_path, monkeypatch, capsys):
    """Called with options: the one line in which serial training, in this process and an empty folder, refuses them."""
    monkeypatch.chdir(tmp_path)

    def refuse(*arguments):
        before = sorted(os.listdir())
        status, (stdout, stderr) = train_alone(*SMALL, "--steps", "1000000", *arguments), capsys.readouterr()
        assert (status, stdout, stderr.count("\n")) == (2, "", 1)
        assert sorted(os.listdir()) == before
        return stderr.removeprefix("minidist: error: ").rstrip()

    return refuse


# ---- a disk that is full ---------------------------------------------------------------------------------------------


def test_what_cannot_be_saved_is_one_line_and_the_rest_is_there(tmp_path):
    """The model is larger than the limit, the report is not."""
    outputs = ["--export", "model", "--json", "report"]
    whole = run(tmp_path, *outputs)
    assert (whole.returncode, whole.stderr) == (0, "")
    older, limit = (tmp_path / "model").read_bytes(), (tmp_path / "report").stat().st_size + 1000
    assert len(older) > limit
    (tmp_path / "report").unlink()
    found = run(tmp_path, *outputs, "--sample", "5", "--steps", "3", limit=limit)
    assert (found.returncode, found.stderr) == (74, "minidist: error: cannot write model: File too large\n")
    assert "validation loss" in found.stdout
    assert "The model writes:" in found.stdout
    assert len(json.loads((tmp_path / "report").read_text())["loss"]) == 3
    assert (tmp_path / "model").read_bytes() == older
    assert sorted(os.listdir(tmp_path)) == ["model", "report"]


def test_a_disk_with_too_little_room_is_noticed_before_the_work(refusal, monkeypatch):
    disk = namedtuple("disk", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: disk(1000))
    assert refusal("--save", "model").endswith("MB; the disk has 0.0 MB left")
    assert refusal("--export", "model").endswith("MB; the disk has 0.0 MB left")


def test_a_name_that_is_too_long_is_noticed_before_the_work(refusal):
    for option in ("--save", "--export", "--json"):
        assert refusal(option, 256 * "a") == f"{option} {256 * 'a'}: cannot write there: File name too long"


# ---- a file for two things -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "words"), table(__file__, "no_output_overwrites_an_input_or_another_output")
)
def test_no_output_overwrites_an_input_or_another_output(refusal, tmp_path, first, second, words):
    (tmp_path / "text").write_text("some text " * 1000)
    (tmp_path / "link").symlink_to("text")
    (tmp_path / "dangling").symlink_to("new")
    (tmp_path / "folder").symlink_to(".")
    os.link(tmp_path / "text", tmp_path / "hard")
    assert refusal(*first.split(), *second.split()) == f"{words}: give it one of its own"
    assert refusal(*second.split(), *first.split()) == f"{words}: give it one of its own"


def test_training_may_be_saved_where_it_came_from(tmp_path):
    assert run(tmp_path, "--save", "model").returncode == 0
    assert run(tmp_path, "--load", "model", "--save", "./model", "--steps", "3").returncode == 0
    assert run(tmp_path, "--load", "model", "--steps", "2").returncode == 2
    assert run(tmp_path, "--load", "model", "--export", "file", "--steps", "3").returncode == 0
    assert run(tmp_path, "--load", "file", "--export", "./file", "--steps", "4").returncode == 0


def test_a_chapter_says_which_field_of_jsonl_it_trains_on(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"text": "abc abd ", "body": "xyz"}\n' * 50)
    for chapter in ("minidist.train", "minidist.parameter_server --colocated"):
        done = run_python("-m", *chapter.split(), *SMALL, "--data", "c.jsonl", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "minidist: c.jsonl has 50 documents, one in each line: the field 'text' is used" in done.stderr


def test_a_field_is_of_a_file(refusal):
    assert refusal("--text-field", "text") == "--text-field needs --data"
