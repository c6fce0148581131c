"""--log: a line of JSON for each step."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from programs import run_python

SMALL = "--layers 1 --width 8 --heads 2 --context 8 --batch 4 --validate 0"
LINE = ("-m", "minidist.zero3", "--ranks", "2", *SMALL.split())


def read(path: Path) -> list[dict[str, object]]:
    assert path.read_text().endswith("\n")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_step_is_a_line_that_agrees_with_the_report(tmp_path: Path) -> None:
    """Losses, and what rank 0 sent in the last step; a run that goes on from a checkpoint adds its own."""
    run = [*LINE, "--no-prove", "--log", "steps.jsonl", "--save", "saved", "--json", "report.json"]
    assert run_python(*run, "--steps", "3", cwd=tmp_path).returncode == 0
    steps, report = read(tmp_path / "steps.jsonl"), json.loads((tmp_path / "report.json").read_text())
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert [step["loss"] for step in steps] == report["loss"]
    assert (steps[-1]["sent"], steps[-1]["updated"]) == (report["sent"][0], True)
    assert steps[-1]["peak_bytes"] == report["memory"][0]["all but workspace"]
    assert run_python(*run, "--steps", "5", "--load", "saved", cwd=tmp_path).returncode == 0
    assert [step["step"] for step in read(tmp_path / "steps.jsonl")] == [1, 2, 3, 4, 5]
    assert run_python(*run, "--steps", "1", cwd=tmp_path).returncode == 0
    assert [step["step"] for step in read(tmp_path / "steps.jsonl")] == [1]


def test_on_standard_output_it_is_alone(tmp_path: Path) -> None:
    done = run_python(*LINE, "--steps", "2", "--log", "-", cwd=tmp_path)
    assert [json.loads(line)["step"] for line in done.stdout.splitlines()] == [1, 2]


def test_an_overflow_is_null(tmp_path: Path) -> None:
    done = run_python(*LINE, "--steps", "2", "--lr", "1000", "--warmup", "0", "--log", "-", cwd=tmp_path)
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["updated"], second["updated"], second["grad_norm"]) == (True, False, None)


@pytest.mark.skipif(sys.platform == "win32", reason="kills")
def test_lines_are_whole_when_the_job_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    with subprocess.Popen(
        [sys.executable, *LINE, "--steps", "100000", "--log", str(log)], stdout=subprocess.DEVNULL, cwd=tmp_path
    ) as process:
        while process.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") > 20):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert len(read(log)) > 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk")
def test_a_full_disk_is_a_line_and_the_run_goes_on(tmp_path: Path) -> None:
    done = run_python(*LINE, "--steps", "3", "--log", "/dev/full", cwd=tmp_path)
    assert (done.returncode, "claims hold" in done.stdout) == (74, True)
    assert done.stderr.count("cannot write /dev/full") == 1
