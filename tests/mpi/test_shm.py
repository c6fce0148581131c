"""/dev/shm: jobs leave nothing in it, however they end, and one that will find no room there is told so."""

import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from minidist import UsageError
from minidist.cli import doctor
from minidist.launch.launcher import find_mpiexec, launch, started
from minidist.mpi import shm
from programs import run_module

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parents[1] / "jobs"
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
SMALL = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh"]  # as in Docker
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="a /dev/shm is Linux's")


def in_small(code):
    """What Python code prints in a process whose /dev/shm is one of its own, of 64 MB."""
    if sys.platform != "linux" or subprocess.run([*SMALL, "true"], capture_output=True).returncode:
        pytest.skip("a /dev/shm of one's own needs Linux and root")
    run = subprocess.run([*SMALL, sys.executable, "-c", code], env=ENV, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def named_segments(pid):
    """MPICH's segments that a process has mapped: the number of all, and those that still have a name."""
    lines = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/mpich_shm_" in line]
    return len(lines), [line for line in lines if not line.endswith("(deleted)")]


# ---- nothing is left ------------------------------------------------------------------------------------------------


@needs_linux
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_under_plain_mpirun_the_segment_has_no_name_while_the_job_runs(sent):
    command = [find_mpiexec(), "-n", "3", sys.executable, str(JOBS / "run_script.py"), "wait"]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, text=True) as process:
        try:
            output = ""
            while len(pids := re.findall(r"process (\d+) ", output)) < 3:
                line = process.stdout.readline()
                assert line, "the job ended"
                output += line
            for pid in pids:
                mapped, named = named_segments(pid)
                assert named == []
                assert mapped or not shm.is_packaged_mpich()  # or this test would look at nothing
        finally:
            process.send_signal(sent)


def test_jobs_that_end_badly_one_after_the_other_leave_all_the_room_there_was():
    """Messages go on over split communicators; seven jobs of four ranks would leave 30 of 64 MB."""
    out = in_small(
        "import os\nfrom minidist.launch.launcher import launch\n"
        "for how in ['raise', 'SIGKILL', 'SIGSEGV', 'os._exit(3)', 'sys.exit(0)', 'SIGKILL', 'SIGKILL']:\n"
        "    print(launch('jobs.launch_jobs:fail_on_one', 4, 1, how).status)\n"
        "print(launch('jobs.launch_jobs:everyone_receives', 4, timeout=20).status)\n"
        "print(launch('jobs.launch_jobs:ring_of_messages', 4, count=100).values, os.listdir('/dev/shm'))\n"
    )
    seven = ["failed", "killed", "killed", "killed", "failed", "killed", "killed"]
    assert out.splitlines() == [*seven, "hung", "[300.0, 0.0, 100.0, 200.0] []"]


@needs_linux
@pytest.mark.parametrize("how", ["map", pytest.param("fd", marks=pytest.mark.slow)])
def test_a_job_that_is_ended_before_mpi_has_started_leaves_nothing_either(tmp_path, how):
    """A rank in Init has a segment, which still has a name. That of another job stays."""
    own, other = (Path(f"/dev/shm/mpich_shm_test_{os.getpid()}_{who}") for who in ("own", "other"))
    hold = "import mmap, sys, time; f = open(sys.argv[1], 'w+b'); f.truncate(4096)\n"
    hold += {"fd": "time.sleep(60)", "map": "m = mmap.mmap(f.fileno(), 4096); f.close(); time.sleep(60)"}[how]
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f'#!/bin/sh\n[ "$1" = --version ] || exec {sys.executable} -c "{hold}" {own}\n')
    mpiexec.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", hold, str(other)]) as process:
        try:
            with started("jobs.launch_jobs:echo", 1, mpiexec=str(mpiexec)) as running:
                assert running.wait_until(own.exists, 60) is None
                assert running.wait(0.3).status == "hung"
            while not other.exists():
                time.sleep(0.01)
            assert not own.exists()
            assert shm.segments(process.pid) == {str(other)}
        finally:
            process.kill()
            own.unlink(missing_ok=True)
            other.unlink(missing_ok=True)


@needs_linux
def test_files_of_others_are_nobodys_segments(tmp_path):
    """Such as Open MPI's, which are opened late."""
    file = Path(f"/dev/shm/sm_segment.test.{os.getpid()}")
    with open(file, "w") as held:
        try:
            shm.unlink()
            assert file.exists()
            assert shm.segments() == set()
            assert shm.orphans().get(str(file)) is None
        finally:
            held.close()
            file.unlink()


# ---- no room --------------------------------------------------------------------------------------------------------


@pytest.fixture
def memory(monkeypatch):
    """Sets the size of /dev/shm, and what is free, in bytes."""
    monkeypatch.setattr(shm, "is_packaged_mpich", lambda: True)

    def of(total, free):
        monkeypatch.setattr(shm, "space", lambda: (total, free))

    return of


def test_room_is_as_it_was_seen(memory):
    """In 64 MiB MPICH 5.0 of pip starts 11 ranks, crashes with 12, and 8 leave no room for 4 more."""
    docker = 64 << 20
    memory(docker, docker)
    assert shm.shortage(11) == ""
    assert re.fullmatch(r"/dev/shm has 67 MB free of 67, and 71 are needed for 12 ranks: .*doctor.*", shm.shortage(12))
    memory(docker, docker - 43_134_976)
    assert "has 24 MB free of 67, and 28 are needed for 4 ranks" in shm.shortage(4)
    assert shm.shortage(4, shm.SHARE) == ""  # the others may be those that have taken it
    with pytest.raises(UsageError, match="28 are needed for 4 ranks"):
        launch("jobs.launch_jobs:echo", 4)


def test_a_rank_without_room_ends_the_job_in_one_line():
    out = in_small(
        "import subprocess, sys, os\nfrom minidist.launch.launcher import find_mpiexec\n"
        "def run(n):\n"
        "    ranks = [find_mpiexec(), '-n', str(n), sys.executable, '-m', 'minidist.ring', '--size', '10']\n"
        "    run = subprocess.run(ranks, capture_output=True, text=True)\n"
        "    print(run.returncode, run.stdout, run.stderr, os.listdir('/dev/shm'))\n"
        "run(12)\nos.posix_fallocate(os.open('/dev/shm/full', os.O_CREAT | os.O_WRONLY), 0, 62 << 20)\nrun(4)\n"
    )
    says = "python -m minidist doctor says more\n"
    assert out == (
        f"2  minidist: error: /dev/shm has 67 MB free of 67, and 71 are needed for 12 ranks: {says} []\n"
        f"2  minidist: error: /dev/shm has 2 MB free of 67, and 28 are needed for 4 ranks: {says} ['full']\n"
    )


@needs_linux
@pytest.mark.skipif(not shm.is_packaged_mpich(), reason="only its needs are known")
def test_one_rank_speaks_even_if_a_rank_of_another_job_fails_at_that_moment(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # as that rank has it, until its job has ended
    release = threading.Timer(2, os.close, [folder])
    release.start()
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (40, 40))
    run = run_module("minidist.ring --size 10", 6, env={"TMPDIR": str(tmp_path)}, preexec_fn=few)
    release.join()
    says = "minidist: error: ulimit -n allows 40 open files, and MPI needs 48\n"
    assert (run.returncode, run.stdout, run.stderr) == (2, "", says)


# ---- limits of the shell --------------------------------------------------------------------------------------------


@needs_linux
@pytest.mark.skipif(not shm.is_packaged_mpich(), reason="only its needs are known")
@pytest.mark.parametrize(
    ("limit", "most", "says"),
    [
        (resource.RLIMIT_NOFILE, 40, "ulimit -n allows 40 open files, and MPI needs 48"),
        (resource.RLIMIT_FSIZE, 1024, "ulimit -f allows files of 0.0 MB, and MPI needs 4.3 MB in /dev/shm"),
    ],
)
@pytest.mark.parametrize("n", [0, 2])
def test_a_limit_below_what_mpi_needs_is_one_line(n, limit, most, says):
    run = run_module("minidist.ring --size 10", n, preexec_fn=lambda: resource.setrlimit(limit, (most, most)))
    assert (run.returncode, run.stdout, run.stderr) == (2, "", f"minidist: error: {says}\n")


def test_the_limit_of_a_file_is_that_of_the_largest_segment(monkeypatch):
    """A rank's in UCX, or that of all ranks in MPICH: with 8 ranks and 8 MiB, MPI ended them."""
    monkeypatch.setattr(shm, "is_packaged_mpich", lambda: True)
    monkeypatch.setattr(resource, "getrlimit", lambda of: (8 << 20 if of == resource.RLIMIT_FSIZE else 1024, -1))
    assert shm.limits(4) == ""
    assert shm.limits(8) == "ulimit -f allows files of 8.4 MB, and MPI needs 8.5 MB in /dev/shm"


AT_THE_LIMIT = """
import os
from minidist.mpi.run import run

def take_all(comm, _):
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError:
        raise ValueError("all are taken")

run(take_all, prepare=lambda comm: None)
"""


@needs_linux
@pytest.mark.parametrize("n", [0, 2])
def test_a_rank_without_a_free_descriptor_ends_the_job(n):
    command = [*([find_mpiexec(), "-n", str(n)] if n else []), sys.executable, "-c", AT_THE_LIMIT]
    low = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))  # noqa: E731
    run = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=60, preexec_fn=low)
    assert run.returncode == 1
    assert run.stderr.count("ValueError: all are taken") == 1, run.stderr
    assert "Too many open files: '/dev/null'\n\nDuring" not in run.stderr.partition("ValueError")[2]


def test_an_mpi_that_does_not_start_is_the_machines_fault():
    job = launch("jobs.launch_jobs:echo", 2, env={"MPI4PY_LIBMPI": "/nowhere/libmpi.so"})
    assert job.status == "machine"
    assert re.match(r"rank \d could not start MPI:\n", job.report)
    assert "/nowhere/libmpi.so" in job.report


@pytest.mark.parametrize(
    ("total", "free", "left", "verdicts", "words"),
    [
        (2**30, 2**30, {}, ["ok"], "1074 MB free of 1074, enough for 64 or more ranks"),
        (64 << 20, 64 << 20, {}, ["ok"], "67 MB free of 67, enough for 11 ranks"),
        (64 << 20, 30 << 20, {}, ["ok"], "enough for 4 ranks"),
        (64 << 20, 10 << 20, {}, ["wrong"], "--shm-size=1g"),
        (32 << 20, 32 << 20, {}, ["warning"], "--shm-size=1g"),
        (2**30, 2**20, {}, ["wrong"], "ls -lS /dev/shm"),
        (2**30, 2**30, {"/dev/shm/mpich_shm_1_0": 8 << 20}, ["warning", "ok"], "rm /dev/shm/mpich_shm_1_0"),
    ],
)
def test_the_doctor_looks_at_it(memory, monkeypatch, total, free, left, verdicts, words):
    memory(total, free)
    monkeypatch.setattr(shm, "orphans", lambda: left)
    findings = list(doctor.check_shm())
    assert [found.verdict for found in findings] == verdicts
    assert words in " ".join(found.seen + found.mend for found in findings)


@needs_linux
def test_a_segment_that_nobody_has_open_is_an_orphan():
    file = Path(f"/dev/shm/mpich_shm_test_{os.getpid()}_orphan")
    try:
        with open(file, "wb") as held:
            held.write(b"x" * 10_000)
            held.flush()
            assert str(file) not in shm.orphans()
        assert shm.orphans()[str(file)] == 12288
    finally:
        file.unlink()
