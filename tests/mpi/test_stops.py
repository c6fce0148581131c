"""Ranks that a signal stops, and whatever else leaves a job without an answer: a word, an end, and nothing left."""

import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from jobs.processes import Job, is_chapter, send, wait_until
from minidist.__main__ import CHAPTERS
from minidist.mpi import shm, stops
from minidist.mpi.shm import is_packaged_mpich
from minidist.mpi.stops import children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ranks have no process behind them")
needs_mpich = pytest.mark.skipif(not is_packaged_mpich(), reason="which process is which, is known of MPICH")

SMALL = ["--layers", "2", "--width", "8", "--heads", "2", "--context", "8", "--batch", "12"]
LONG = [*SMALL, "--steps", "1000"]
NAMES = [each.name for each in CHAPTERS if each.name not in ("train", "spmd_types")]  # the latter is over in a moment
SILENT = r"ranks? ([\d, and]+) ha(?:s|ve) not answered for"
SAYS = re.compile(rf"^{SILENT} 0.5 s: stopped by a signal.*kill -CONT [\d ]+;", re.MULTILINE)
ENDS = re.compile(rf"^minidist: error: {SILENT} 1 s: the job ends", re.MULTILINE)


def begin(name: str, folder: Path, *options: str, n: int = 2) -> Job:
    """A chapter that goes on for long, and waits a second for an answer."""
    lines = {"ring": ["--size", "30000000"], "parameter_server": [*LONG, "--consistency", "async"]}
    lines["mapreduce"] = ["wordcount", __file__, "--output", "out", "--maps", "100"]
    lines["deepspeed"] = [str(Path(stops.__file__).parents[1] / "deepspeed" / "zero3.json"), *LONG]
    return Job(folder, n, f"minidist.{name}", *lines.get(name, LONG), "--timeout", "1", *options)


def victims(job: Job, who: str, rank: int) -> list[int]:
    """The rank's process, that which stays behind it, or both, as soon as they are there."""
    assert wait_until(lambda: rank in (job.started() if who == "parent" else job.ranks()))
    return [group[rank] for kind, group in (("rank", job.ranks()), ("parent", job.started())) if who in (kind, "both")]


def check_end(job: Job, rank: int) -> None:
    """One line that it does not answer, another that the job ends for it."""
    assert job.status() == 1, job.stderr
    assert SAYS.findall(job.stderr) == [str(rank)], job.stderr
    assert ENDS.findall(job.stderr) == [str(rank)], job.stderr
    assert len(re.findall("^(?!minidist: (?!error))", job.stderr.rstrip(), re.M)) == 2, (
        job.stderr
    )  # and deepspeed's notes
    job.check_nothing_is_left()


@needs_mpich
@pytest.mark.parametrize(
    ("name", "who", "rank", "running"),
    [
        ("parameter_server", "rank", 1, True),
        ("mapreduce", "both", 0, False),
        ("ring", "parent", 1, False),  # before it has forked, or soon after
    ],
)
def test_a_stopped_rank_is_named_and_ends_the_job(
    name: str, who: str, rank: int, running: bool, tmp_path: Path
) -> None:
    with begin(name, tmp_path) as job:
        if running:
            job.wait_for("step")
        send(signal.SIGSTOP, victims(job, who, rank))
        check_end(job, rank)


@needs_mpich
@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "deepspeed"])
def test_stopped_ranks_of_every_chapter(name: str, tmp_path: Path) -> None:
    for running in [False] if name in ("ring", "mapreduce") else [False, True]:
        for who, rank in (("rank", 1), ("parent", 0), ("both", 1)):  # of mapreduce the only worker, which it needs
            folder = tmp_path / f"{who}{running}"
            folder.mkdir()
            with begin(name, folder) as job:
                if running:
                    job.wait_for("step")
                send(signal.SIGSTOP, victims(job, who, rank))
                check_end(job, rank)


@needs_mpich
def test_a_process_that_is_stopped_when_all_else_is_done(tmp_path: Path) -> None:
    """mpirun would wait for it for ever. The losses are there, but not what it had to say of its rank."""
    with begin("zero3", tmp_path, "--steps", "20", "--timeout", "5") as job:
        job.wait_for("step")
        send(signal.SIGSTOP, victims(job, "parent", 1))
        job.wait_for("validation loss")
        assert job.status() != 0
        assert "minidist: error: rank 1 has not answered for 5 s: the job ends" in job.stderr
        job.check_nothing_is_left()


@needs_mpich
def test_a_rank_that_goes_on_in_time_is_forgiven(tmp_path: Path) -> None:
    with begin("zero3", tmp_path, "--steps", "150", "--timeout", "6") as job:
        job.wait_for("step")
        stopped = victims(job, "rank", 1)
        send(signal.SIGSTOP, stopped)
        job.wait_for("rank 1 has not answered for 3 s")
        send(signal.SIGCONT, stopped)
        job.wait_for("rank 1 goes on after")
        assert job.status() == 0
        assert len(job.stderr.splitlines()) == 2, job.stderr
        job.check_nothing_is_left()


@needs_mpich
@pytest.mark.parametrize("who", ["everything", pytest.param("ranks", marks=pytest.mark.slow)])
def test_a_suspended_job_waits(who: str, tmp_path: Path) -> None:
    draw = random.Random(3)
    with begin("zero2", tmp_path, "--steps", "600", "--timeout", "2") as job:
        job.wait_for("step")
        processes = job.alive() if who == "everything" else list(job.ranks().values())
        send(signal.SIGSTOP, draw.sample(processes, len(processes)))
        time.sleep(5)
        assert job.process.poll() is None
        send(signal.SIGCONT, draw.sample(processes, len(processes)))
        assert job.status() == 0, job.stderr
        assert "the job ends" not in job.stderr
        assert who == "ranks" or job.stderr == ""
        job.check_nothing_is_left()


def test_a_rank_that_computes_for_long_is_not_suspected(tmp_path: Path) -> None:
    """Neither in one call that never lets another thread run, nor in a loop."""
    with Job(tmp_path, 2, "jobs.busy", "--timeout", "0.1") as job:
        assert job.status() == 0, job.stderr
        assert job.stderr == ""
        assert re.search(r"for [2-9]", job.stdout), job.stdout


@needs_mpich
@pytest.mark.parametrize("name", ["parameter_server", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES)])
@pytest.mark.parametrize("victim", ["proxy", pytest.param("mpirun", marks=pytest.mark.slow)])
def test_ranks_end_with_what_has_started_them(name: str, victim: str, tmp_path: Path) -> None:
    """Killed, with a stopped rank among them; nobody reads then what they print."""
    with begin(name, tmp_path, "--timeout", "0") as job:
        if name in ("ring", "mapreduce"):
            job.wait_for_mpi()
            send(signal.SIGSTOP, victims(job, "rank", 0))
        else:
            job.wait_for("step")
            send(signal.SIGSTOP, victims(job, "both", 1))
        send(signal.SIGKILL, [job.process.pid if victim == "mpirun" else job.proxy()])
        assert job.status() != 0
        job.check_nothing_is_left()


def in_init(job: Job) -> dict[int, int]:
    """{rank: process} of ranks 0 and 2 of three when they are inside MPI's Init, to which rank 1 never comes."""

    def parents() -> dict[int, int]:
        found = {stops.rank_of(process): process for process in job.alive() if children(process)}
        return {rank: process for rank, process in found.items() if rank in (0, 2)}

    assert wait_until(lambda: len(parents()) == 2), job.stderr
    ranks = {rank: children(process)[0] for rank, process in parents().items()}
    assert wait_until(lambda: bool(shm.segments(ranks[0])))
    return ranks


@needs_mpich
@pytest.mark.parametrize("victim", ["rank 0", "rank 2", "proxy"])
def test_what_is_killed_while_mpi_starts_is_named_and_leaves_nothing(victim: str, tmp_path: Path) -> None:
    with Job(tmp_path, 3, "jobs.slow_start") as job:
        ranks = in_init(job)
        send(signal.SIGKILL, [job.proxy() if victim == "proxy" else ranks[int(victim[-1])]])
        if victim == "proxy":
            job.wait_for(stops.LAUNCHER_ENDED)
            send(signal.SIGKILL, [process for process in job.alive() if stops.rank_of(process) == 1])  # it only sleeps
        assert job.status() != 0
        named = stops.LAUNCHER_ENDED if victim == "proxy" else f"{victim} was killed by signal 9 (SIGKILL)"
        assert job.stderr.count("minidist: ") == job.stderr.count(f"minidist: error: {named}\n") == 1, job.stderr
        job.check_nothing_is_left()


@needs_mpich
def test_ranks_that_are_killed_while_mpi_starts_leave_nothing_that_was_there_before_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, a rank may start when another one has already made the job's segment."""
    monkeypatch.setenv("LATE", str(tmp_path / "now"))
    with Job(tmp_path, 3, "jobs.slow_start") as job:
        assert wait_until(lambda: any(map(shm.segments, job.alive())))
        (tmp_path / "now").touch()
        ranks = in_init(job)
        send(signal.SIGSTOP, [stops.parent(ranks[0])])  # which would know better
        send(signal.SIGKILL, [ranks[0], ranks[2]])
        assert job.status() != 0
        assert job.stderr.count("rank 2 was killed by signal 9 (SIGKILL)") == 1
        job.check_nothing_is_left()


@needs_mpich
def test_a_rank_that_is_stopped_before_the_kernel_shows_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between mpirun's fork and Python: /proc then shows the environment of mpirun's own process."""
    monkeypatch.setattr(stops, "rank_of", lambda process: 0 if process == os.getpid() else -1)
    monkeypatch.setattr(stops, "children", lambda process: [os.getpid(), 4712] if process == os.getppid() else [])
    monkeypatch.setattr(stops, "state", lambda process: stops.STOPPED if process == 4712 else "R")
    for name, value in {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0", "PMI_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    watch = stops.StopDetector(0, 1, 10.0, can_go_on=lambda stopped, ranks: False)
    watch.launcher = os.getppid()
    watch.look()
    assert watch.silent.keys() == {1}


def test_which_processes_are_a_chapters() -> None:
    """In a clone or a source distribution, which is in a folder of that name."""
    at = "/home/me/minidist-0.2.0/.venv/bin"
    assert is_chapter(f"{at}/python\0-m\0minidist.ring\0--size\x00300\0".encode())
    assert not is_chapter(f"{at}/hydra_pmi_proxy\0--control-port\0vm:33\0".encode())


def test_which_timeout_a_command_line_has() -> None:
    assert stops.timeout_in(["--steps", "3", "--timeout", "5", "--json", "-"], 120.0) == 5.0
    assert stops.timeout_in(["wordcount", "--timeout=0.5", "file"], 10.0) == 0.5
    assert stops.timeout_in(["--timeout", "2", "--timeout", "3"], 10.0) == 3.0
    for refused in (["--timeout"], ["--timeout", "x"], ["--time", "3"], ["--", "--timeout", "3"]):
        assert stops.timeout_in(refused, 120.0) == 120.0
