"""What a chapter cannot do is said in one line, before any work; and help is short."""

import argparse
import os
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from alone import train_alone
from cases import TRAINING, OfRanks
from minidist import Finished, UsageError
from minidist.__main__ import CHAPTERS
from minidist.cli.shared import FileOptions, ModelOptions, TrainingOptions
from minidist.programs.chapter import find
from programs import run_chapter, run_module
from tables import table

LETTERS = "абвгдежзиклмнопрстуфхцч"
TEXT = "".join(np.random.default_rng(0).choice(list(LETTERS), 3000, p=np.arange(1, 24) / 276)) + LETTERS
GOOD = "--layers 1 --width 10 --heads 2 --context 8 --batch 14 --lr 0.01 --warmup 1 --data FILES/text"
BAD = table(__file__, "among_good_ones")
ALONE = [row for row in BAD if not row[0]]
ON_RANKS = [row for row in BAD if row[0]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that cannot be used, and checkpoints: one mixed with AdamW, 3 steps; one after the text was changed."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "text").write_text(TEXT, encoding="utf-8")
    (folder / "empty.txt").touch()
    (folder / "short.txt").write_text("а" * 89, encoding="utf-8")  # a context of 8 wants 10 times 9
    (folder / "latin1.txt").write_bytes("Grüße. ".encode("latin-1") * 100)
    (folder / "other.txt").write_text(TEXT.replace("а", "я"), encoding="utf-8")
    os.mkfifo(folder / "pipe")
    for name, data in (("model.st", "text"), ("other.st", "other.txt")):
        line = f"{GOOD} --steps 3 --data FILES/{data} --export FILES/{name}"
        assert train_alone(*line.replace("FILES", str(folder)).split()) == 0
    whole = (folder / "model.st").read_bytes()
    (folder / "truncated.st").write_bytes(whole[: len(whole) // 2])
    return folder


def after_good_ones(name: str, options: str, files: Path) -> str:
    """With as many steps as this, a run that began would not end."""
    good = "" if name == "ring" else f"{GOOD} --steps 1000000 "
    return f"{good}{options}".replace("FILES", str(files))


def check_words(said: str, words: list[str], files: Path) -> None:
    assert "\n" not in said.strip()
    for word in (word.replace("FILES", str(files)) for word in words):
        assert said == word[1:] if word.startswith("=") else word in said


def refused(name: str, line: str, ranks: int) -> str:
    """What every rank finds, on one that stands alone."""
    with pytest.raises((UsageError, Finished)) as ended:
        find(name).prepared(line.split(), OfRanks(ranks))
    return str(ended.value)


@pytest.mark.parametrize(("n", "name", "options", "words"), table(__file__, "alone"))
def test_what_cannot_be(n: int, name: str, options: str, words: list[str], files: Path) -> None:
    check_words(refused(name, options.replace("FILES", str(files)), n), words, files)


@pytest.mark.parametrize(("n", "name", "options", "words"), [row for row in ON_RANKS if row[1] != "train"])
def test_what_cannot_be_among_good_options(n: int, name: str, options: str, words: list[str], files: Path) -> None:
    check_words(refused(name, after_good_ones(name, options, files), n), words, files)


@pytest.mark.parametrize(
    ("n", "name", "options", "words"),
    [*ALONE, *(pytest.param(*row, marks=[pytest.mark.slow] * (i % 8 > 0)) for i, row in enumerate(ON_RANKS))],
)
def test_a_program_says_it_in_one_line_and_leaves_nothing(
    n: int,
    name: str,
    options: str,
    words: list[str],
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Serial training runs in this process, as its program does."""
    line = after_good_ones(name, options, files)
    if n == 0:
        monkeypatch.chdir(tmp_path)
        status, (stdout, stderr) = train_alone(*line.split()), capfd.readouterr()
    else:
        done = run_chapter(f"{name} {line}", n, cwd=tmp_path)
        status, stdout, stderr = done.returncode, done.stdout, done.stderr
    assert (status, stdout, stderr.strip("\n").count("\n")) == (2, "", 0)
    assert stderr.strip("\n").startswith("minidist: error: ")
    assert "on rank" not in stderr  # all ranks agree
    check_words(stderr, words, files)
    assert os.listdir(tmp_path) == []
    assert not list(files.glob("*.tmp"))


# ---- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [chapter.name for chapter in CHAPTERS])
def test_help_has_a_line_for_each_option(name: str) -> None:
    """In 80 columns: a chapter's own options, then those that all share, the same in each; three screens at most."""
    lines = refused(name, "--help", 2).rstrip().splitlines()
    assert len(lines) <= 78
    assert max(map(len, lines)) <= 80
    listed = {word for line in lines if line.startswith("  -") for word in re.findall(r"(?<=[ ])-[-a-z]+", line[:26])}
    options = [each for each in find(name).parser()._actions if each.help != argparse.SUPPRESS]
    assert {each.option_strings[-1] for each in options if each.option_strings} <= listed
    if name in TRAINING:
        headings = [line for line in lines if re.fullmatch(r"[a-z ]+:", line)]
        assert headings == ["options:"] * (headings[0] == "options:") + ["model:", "training:", "text and files:"]
        shared = [line.split() for line in lines[lines.index("model:") :] if line.startswith("  --")]
        usual = refused("train", "--help", 1).split("model:\n")[1]
        assert [line[0] for line in shared] == re.findall(r"^  (--\S+)", usual, re.MULTILINE)
        assert len(shared) == sum(len(fields(kind)) for kind in (ModelOptions, TrainingOptions, FileOptions))
        # The same defaults, but for what the chapter's text names.
        others = [line for line in shared if " ".join(line) not in re.sub(" +", " ", usual)]
        fp32 = ("--precision", "fp32)")
        own = {"parameter_server": fp32, "local_sgd": fp32, "zero_r": ("--recompute", "full)")}
        assert [(line[0], line[-1]) for line in others] == ([own[name]] if name in own else [])


@pytest.mark.parametrize(("n", "name"), [(3, "zero3"), (2, "ring"), (0, "train")])
def test_help_is_printed_once(n: int, name: str) -> None:
    done = run_module(f"minidist.{name} --help", n)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(f"usage: python -m minidist.{name} [options]") == 1
    assert done.stdout.count("--json FILE") == 1
