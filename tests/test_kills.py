"""A job of ranks from which one is killed, or whose mpirun is: it ends, and leaves nothing behind."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minidist.mpi.launch import find_mpiexec

ROOT = Path(__file__).parents[1]
SEED, USUAL, ALL = 7, 12, 100
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSEGV)
VICTIMS = ("rank", "rank", "rank", "mpirun", "parent")
PATIENCE = 60  # seconds: with other work on the machine


def processes_of(mark: str) -> list[int]:
    """Processes that have the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


def ranks_of(mark: str) -> dict[int, int]:
    """{process: rank} of those that are ranks: not mpirun, its proxy, and what waits for a rank to say how it ends."""
    python = [pid for pid in processes_of(mark) if b"minidist" in Path(f"/proc/{pid}/cmdline").read_bytes()[:200]]
    environments = {pid: Path(f"/proc/{pid}/environ").read_bytes() for pid in python if parent_of(pid) in python}
    return {pid: int(re.findall(rb"\0PMI_RANK=(\d+)", found)[0]) for pid, found in environments.items()}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def segments() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def wait_until(done: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + PATIENCE
    while not done() and time.monotonic() < give_up:
        time.sleep(0.05)
    return done()


def kill_one(seed: int, folder: Path) -> None:
    """Train with ZeRO-3, and after the first steps kill a rank, or mpirun, or the process that waits for a rank."""
    draw, mark = random.Random(seed), f"MINIDIST_TEST={folder}"
    n, victim, number = draw.randint(2, 4), draw.choice(VICTIMS), draw.choice(SIGNALS)
    (folder / "tmp").mkdir()
    before = segments()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")}
    environment["MINIDIST_TEST"] = str(folder)
    options = "--steps 1000 --layers 1 --width 8 --context 8 --save model --json report"
    process = subprocess.Popen(
        [find_mpiexec(), "-n", str(n), sys.executable, "-m", "minidist.zero3", *options.split()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout
    printed = process.stdout.readline()
    assert b"step" in printed, printed + process.stdout.read()
    time.sleep(draw.random() / 10)
    ranks = ranks_of(mark)
    assert sorted(ranks.values()) == list(range(n))
    pid, rank = draw.choice(sorted(ranks.items(), key=lambda item: item[1]))
    if victim == "mpirun":
        pid = process.pid
    elif victim == "parent":
        pid = parent_of(pid)
    if victim != "mpirun" and number == signal.SIGHUP:  # a rank of MPICH lives on: hangups are mpirun's
        number = signal.SIGTERM
    name = signal.Signals(number).name
    what = f"seed {seed}: {name} to {victim} of {n}"
    try:
        os.kill(pid, number)
        assert wait_until(lambda: process.poll() is not None), f"{what}: goes on"
        assert process.returncode != 0, what
        assert wait_until(lambda: not processes_of(mark)), f"{what}: processes are left"
        assert wait_until(lambda: not segments() - before), f"{what}: {segments() - before} are left in /dev/shm"
        assert sorted(os.listdir(folder)) == ["tmp"], what  # nothing half-written
        assert os.listdir(folder / "tmp") == [], what
        said = process.stdout.read().decode()
        if victim == "rank":
            killed = f"minidist: error: rank {rank} was killed by signal {number} ({name})\n"
            interrupted = f"minidist: rank {rank} was interrupted\n" if rank else "minidist: interrupted\n"
            assert (interrupted if number == signal.SIGINT else killed) in said, f"{what}:\n{said}"
        assert said.count("minidist:") <= (n if victim == "mpirun" else 1), f"{what}:\n{said}"  # it hands signals on
        assert "Traceback" not in said, f"{what}:\n{said}"
    finally:
        for left in processes_of(mark):
            os.kill(left, signal.SIGKILL)
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("seed", range(SEED, SEED + USUAL))
def test_a_killed_job_ends_and_leaves_nothing(seed: int, tmp_path: Path) -> None:
    kill_one(seed, tmp_path)


@pytest.mark.slow
def test_many_killed_jobs(tmp_path: Path) -> None:
    for seed in range(SEED + USUAL, SEED + ALL):
        (tmp_path / str(seed)).mkdir()
        kill_one(seed, tmp_path / str(seed))
