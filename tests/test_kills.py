"""A job of ranks from which one is killed or stopped, or whose mpirun is killed: it ends, and leaves nothing behind."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.processes import Job, send
from minidist.__main__ import CHAPTERS
from minidist.checkpoints import manifest
from sampling import shard_of_this_run

SEEDS = range(7, 107)
OF_THIS_RUN = shard_of_this_run(SEEDS, 25)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSEGV, signal.SIGSTOP, signal.SIGSTOP)
VICTIMS = ("rank", "rank", "rank", "parent", "both", "mpirun", "proxy")

MODEL = {"--steps": 200, "--layers": 2, "--width": 12, "--heads": 12, "--context": 8, "--batch": 24}
UNSAVED = [*(str(word) for option in MODEL.items() for word in option), "--json", "report"]
SMALL = [*UNSAVED, "--save", "model"]
TEXTS = [str(path) for path in Path(__file__).parent.glob("*.py")]
LINES = {
    "parameter_server": SMALL,  # saves at its end alone
    "local_sgd": [*UNSAVED, "--steps", "2000"],  # it is quick; between two averagings it has nothing to save
    "ring": ["--size", "10000000", "--json", "report"],
    "mapreduce": ["wordcount", *TEXTS, "--output", "out", "--maps", "100", "--json", "report"],
}
NAMES = [each.name for each in CHAPTERS if each.name not in ("train", "spmd_types")]  # the latter is over in a moment


def end_one(seed: int, folder: Path) -> None:
    """Begin a chapter, and after its first steps kill or stop a rank, the process that waits for it, or what has
    started them."""
    draw = random.Random(seed)
    name, n, rank = draw.choice(NAMES), draw.randint(2, 4), 0
    victim, number = draw.choice(VICTIMS), draw.choice(SIGNALS)
    saved = name in NAMES and name not in LINES
    line = [*SMALL, "--save-every", str(draw.randint(1, 30))] if saved else LINES[name]
    if (victim in ("mpirun", "proxy") and number == signal.SIGSTOP) or victim == "proxy":
        number = signal.SIGKILL
    if victim != "mpirun" and number == signal.SIGHUP:  # a rank of MPICH lives on: hangups are mpirun's
        number = signal.SIGTERM
    if name != "mapreduce" or number != signal.SIGSTOP:  # its master gives stopped workers up
        rank = draw.randrange(n)
    what = f"seed {seed}: {signal.Signals(number).name} to {victim} {rank} of {n}, {name}"
    with Job(folder, n, f"minidist.{name}", *line, "--timeout", "1") as job:
        job.wait_for("step") if "--steps" in line else job.wait_for_mpi()
        time.sleep(draw.random() / 10)
        ranks, started = job.ranks(), job.started()
        assert sorted(ranks) == sorted(started) == list(range(n)), f"{what}: {ranks} {started}"
        of = {"rank": [ranks[rank]], "parent": [started[rank]], "both": [started[rank], ranks[rank]]}
        send(number, of.get(victim) or [job.process.pid if victim == "mpirun" else job.proxy()])
        assert job.status() != 0, f"{what}: {job.stderr}"
        job.check_nothing_is_left()
        check_what_is_said(job, victim, number, rank, what)
        check_files(job, what)


def check_what_is_said(job: Job, victim: str, number: int, rank: int, what: str) -> None:
    said = job.stderr
    assert "Traceback" not in said, f"{what}:\n{said}"
    if number == signal.SIGSTOP:
        assert f"minidist: error: rank {rank} has not answered for 1 s: the job ends" in said, f"{what}:\n{said}"
        left = victim == "parent"  # its rank works on, and may have left with all others; then mpirun hears no abort
        assert job.status() in (1, *[signal.SIGKILL] * left), f"{what}: {job.status()}"
    elif victim == "rank":
        killed = f"minidist: error: rank {rank} was killed by signal {number} ({signal.Signals(number).name})\n"
        interrupted = f"minidist: rank {rank} was interrupted\n" if rank else "minidist: interrupted\n"
        assert (interrupted if number == signal.SIGINT else killed) in said, f"{what}:\n{said}"
    most = job.n if victim == "mpirun" else 1  # it hands signals on
    assert said.count("minidist:") <= most, f"{what}:\n{said}"


def check_files(job: Job, what: str) -> None:
    """No output is half-written, and what was saved in the course of the run is whole."""
    left = {name for name in os.listdir(job.folder) if not name.startswith("tmp")}
    if job.status() == signal.SIGKILL and "report" in left:  # the ranks had done all their work
        json.loads((job.folder / "report").read_text())
        left.remove("report")
    assert left <= {"model", "out"}, f"{what}: {left}"
    if "model" in left:
        model = job.folder / "model"
        others = {name for name in os.listdir(model) if not manifest.is_draft(name)} - {manifest.LATEST}
        assert others == {*manifest.names_in(str(model))}, what
        # the first gets its name just before `latest` does
        whole = [model] if (model / manifest.LATEST).exists() else [model / name for name in others]
        for folder in whole:
            inspect = [sys.executable, "-m", "minidist", "inspect", str(folder)]
            done = subprocess.run(inspect, capture_output=True, text=True)
            assert done.returncode == 0, f"{what}: {done.stdout}{done.stderr}"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("seed", OF_THIS_RUN)
def test_a_job_that_is_killed_or_stopped_ends_and_leaves_nothing(seed: int, tmp_path: Path) -> None:
    end_one(seed, tmp_path)


@pytest.mark.slow
def test_many_killed_and_stopped_jobs(tmp_path: Path) -> None:
    for seed in sorted({*SEEDS} - {*OF_THIS_RUN}):
        (tmp_path / str(seed)).mkdir()
        end_one(seed, tmp_path / str(seed))
