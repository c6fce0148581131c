"""Random command lines: whatever is asked, a chapter does it, or says in one line why not. No trace, no hang."""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minidist import contents
from minidist.launch.launcher import find_mpiexec
from minidist.programs.chapter import find

ROOT = Path(__file__).parents[1]
SEED = 20_261_121
USUAL, ALL = 60, 600
LONGEST = 20  # seconds of a processor for each rank: with other work on the machine they take longer
PATIENCE = 120  # seconds until a line is taken for hung

# What a chapter trains is small; what is drawn comes after it, and wins.
SMALL = "--steps 2 --layers 1 --width 8 --heads 2 --context 8 --batch 8"
WHOLE = ("0", "1", "2", "3", "4", "8", "-1", "x", "1.5", "", "1000000000000")
NUMBERS = ("0", "0.5", "1", "3", "1e9", "-1", "nan", "inf", "x", "")


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Each chapter's own."""
    return {name: find(name).parser() for name, *_ in contents.CHAPTERS}


def value_of(action: argparse.Action, draw: random.Random, folder: Path) -> str:
    """Something for an option: as it should be, nearly so, or not at all."""
    if action.choices and draw.random() < 0.8:
        return str(draw.choice(list(action.choices)))
    if action.metavar == "FILE" or "DIR" in str(action.metavar):
        long = "n" * 300
        name = draw.choice(
            ("text", "new", "folder", "nowhere/new", long, "binary", "empty", "/dev/null", "/proc/new", ".")
        )
        return name if name.startswith(("/", ".")) else str(folder / name)
    if action.dest in ("steps", "sample"):
        return draw.choice(("0", "1", "2", "-1", "x"))
    return draw.choice(NUMBERS if "number" in getattr(action.type, "__qualname__", "") else WHOLE)


def line(seed: int, folder: Path) -> tuple[int, list[str]]:
    """A number of ranks, a chapter and its arguments."""
    draw = random.Random(seed)
    chapter, parser = draw.choice(list(parsers().items()))
    ranks = 0 if chapter == "train" else draw.randint(1, 4)
    arguments = [] if chapter in ("ring", "mapreduce") else SMALL.split()
    if chapter == "mapreduce":
        job = draw.choice(("wordcount", "grep", "sort", "index", "nothing"))
        arguments = [job, *draw.sample([str(folder / "text"), str(folder / "binary"), str(folder / "gone")], 1)]
    options = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    for action in draw.sample(options, min(draw.randint(1, 4), len(options))):
        arguments.append(draw.choice(action.option_strings))
        if action.nargs != 0:
            arguments.append(value_of(action, draw, folder))
    if chapter == "mapreduce" and "--output" not in arguments:
        arguments += ["--output", str(folder / f"output{seed}")]
    return ranks, [chapter, *arguments]


def run(ranks: int, words: list[str], folder: Path) -> tuple[int, str, str]:
    launcher = [find_mpiexec(), "-n", str(ranks)] if ranks else []
    process = subprocess.Popen(
        [*launcher, sys.executable, "-m", f"minidist.{words[0]}", *words[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def check(seed: int, folder: Path) -> None:
    for name, content in (("text", "the quick brown fox\n" * 200), ("binary", b"\xff\x00\xfe" * 99), ("empty", "")):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "folder").mkdir(exist_ok=True)
    ranks, words = line(seed, folder)
    before = os.times()
    status, _, err = run(ranks, words, folder)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    said = f"seed {seed}: -n {ranks} {' '.join(words)}\n{err[-2000:]}"
    assert status in (0, 1, 2), f"status {status}, {said}"
    assert seconds <= LONGEST * max(1, ranks), f"{seconds:.0f} s, {said}"
    assert "Traceback" not in err, said
    assert len(err.splitlines()) <= 3, said
    assert (status == 0) <= (err == ""), said


@pytest.mark.parametrize("seed", range(SEED, SEED + USUAL))
def test_a_random_command_line(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.slow
def test_many_random_command_lines(tmp_path: Path) -> None:
    failed = []
    for seed in range(SEED + USUAL, SEED + ALL):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            check(seed, folder)
        except AssertionError as error:
            failed.append(str(error))
        shutil.rmtree(folder)
    assert not failed, "\n\n".join(failed)
