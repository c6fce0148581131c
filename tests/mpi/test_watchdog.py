"""Ctrl-C, and waits that last."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minidist.launch.launcher import find_mpiexec
from minidist.mpi.shm import OWN, is_packaged_mpich
from minidist.mpi.stops import children

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "tests" / "jobs"
PATHS = {**os.environ, "TERM": "xterm", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}


def at_a_terminal(command: list[str], then: Callable[[subprocess.Popen, str], bool]) -> tuple[int, str]:
    """Run a command at a terminal of its own, and call `then` with what it has printed until it says that it is done;
    the exit status, and all that was printed."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, cwd=ROOT, env=PATHS
    )
    os.close(slave)
    printed, done, give_up = b"", False, time.monotonic() + 60
    try:
        while time.monotonic() < give_up:
            try:
                printed += os.read(master, 65536)
            except OSError:  # nobody has the terminal open any more
                break
            done = done or then(process, printed.decode(errors="replace"))
        return process.wait(10), printed.decode(errors="replace")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        os.close(master)


@pytest.mark.parametrize("ranks", [0, 3])
def test_an_interrupt_is_one_line_and_status_130(ranks: int) -> None:
    """Of the job, and of one process; the cursor, which the progress bar hides, is shown again."""
    program = [sys.executable, "-m", "minidist.zero3" if ranks else "minidist.train", "--steps", "100000"]
    launcher = [find_mpiexec(), "-n", str(ranks)] if ranks else []

    def interrupt_after_a_step(process: subprocess.Popen, printed: str) -> bool:
        if "loss" not in printed:
            return False
        os.killpg(process.pid, signal.SIGINT)
        return True

    status, printed = at_a_terminal([*launcher, *program, "--layers", "1", "--width", "8"], interrupt_after_a_step)
    assert status == 130
    assert printed.count("minidist: interrupted") == 1
    assert "Traceback" not in printed
    assert "BAD TERMINATION" not in printed
    assert printed.rfind("\033[?25h") > printed.rfind("\033[?25l") >= 0


SLOW = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            print("importing", flush=True)
            time.sleep(1)

sys.meta_path.insert(0, Slow())
"""


@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize("name", ["shlex", "termios", "numpy", "minidist.mpi.over_mpi"])
def test_an_interrupt_during_imports(name: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first line of minidist on: one line, status 130. Each of these modules is imported by another part of
    the start."""
    (tmp_path / "sitecustomize.py").write_text(SLOW.format(name=name))
    monkeypatch.setitem(PATHS, "PYTHONPATH", f"{tmp_path}{os.pathsep}{PATHS['PYTHONPATH']}")
    if name == "minidist.mpi.over_mpi" and not ranks:
        pytest.skip("a program without ranks does not import it")
    launcher = [find_mpiexec(), "-n", str(ranks)] if ranks else []
    program = [sys.executable, "-m", "minidist.zero3" if ranks else "minidist.train", "--steps", "100000"]

    def interrupt(process: subprocess.Popen, printed: str) -> bool:
        if printed.count("importing") < max(ranks, 1):
            return False
        os.killpg(process.pid, signal.SIGINT)
        return True

    status, printed = at_a_terminal([*launcher, *program], interrupt)
    assert status == 130, printed
    assert printed.count("minidist: interrupted") == 1
    assert "Traceback" not in printed
    assert "BAD TERMINATION" not in printed


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_an_interrupt_of_a_rank_alone_while_mpi_starts_waits_for_the_end_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -INT of one rank's process, which is inside MPI's Init or just before: the job ends all the same."""
    (tmp_path / "sitecustomize.py").write_text(SLOW.format(name="minidist.mpi.over_mpi"))
    monkeypatch.setitem(PATHS, "PYTHONPATH", f"{tmp_path}{os.pathsep}{PATHS['PYTHONPATH']}")

    def interrupt(process: subprocess.Popen, printed: str) -> bool:
        if printed.count("importing") < 2:
            return False
        (proxy,) = children(process.pid)
        os.kill(children(children(proxy)[0])[0], signal.SIGINT)
        return True

    command = [find_mpiexec(), "-n", "2", sys.executable, "-m", "minidist.zero3", "--steps", "100000"]
    status, printed = at_a_terminal(command, interrupt)
    assert status == 130, printed
    assert len(re.findall("minidist: .*interrupted", printed)) == 1
    assert "Traceback" not in printed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_is_ended_while_it_imports_says_so(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW.format(name="numpy"))
    monkeypatch.setitem(PATHS, "PYTHONPATH", f"{tmp_path}{os.pathsep}{PATHS['PYTHONPATH']}")

    def end(process: subprocess.Popen, printed: str) -> bool:
        if "importing" not in printed:
            return False
        process.send_signal(number)
        return True

    status, printed = at_a_terminal([sys.executable, "-m", "minidist.train"], end)
    assert status == 128 + number, repr(printed)
    assert (
        printed.replace("importing", "").split("\r\n").count(f"minidist: ended by signal {number} ({number.name})") == 1
    )


def segments_of_the_child(pid: str) -> list[str]:
    """Lines of what a process's child, the rank, has mapped in /dev/shm."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [line for child in children for line in Path(f"/proc/{child}/maps").read_text().splitlines() if OWN in line]


@pytest.mark.skipif(not is_packaged_mpich(), reason="how MPI starts is another MPI's own affair")
def test_an_interrupt_while_ranks_are_inside_mpis_init() -> None:
    """Where no handler of Python's runs: one line, status 130, and nothing is left of what they have begun."""
    seen: list[str] = []

    def interrupt_in_init(process: subprocess.Popen, printed: str) -> bool:
        pids = re.findall(r"process (\d+) ", printed)
        if len(pids) < 3:
            return False
        give_up = time.monotonic() + 30
        while not seen and time.monotonic() < give_up:
            time.sleep(0.01)
            seen.extend(line.split()[-1] for pid in pids for line in segments_of_the_child(pid))
        os.killpg(process.pid, signal.SIGINT)
        return True

    script = str(JOBS / "slow_start.py")
    status, printed = at_a_terminal([find_mpiexec(), "-n", "3", sys.executable, script], interrupt_in_init)
    assert status == 130
    assert printed.count("minidist: interrupted") == 1
    assert "BAD TERMINATION" not in printed
    assert seen
    assert not [path for path in seen if os.path.exists(path)]


def test_an_interrupt_when_all_is_done_comes_too_late() -> None:
    def interrupt_while_they_leave(process: subprocess.Popen, printed: str) -> bool:
        if printed.count("leaving") < 2:
            return False
        os.killpg(process.pid, signal.SIGINT)
        return True

    command = [find_mpiexec(), "-n", "2", sys.executable, str(JOBS / "slow_end.py")]
    status, printed = at_a_terminal(command, interrupt_while_they_leave)
    assert status == 0
    assert "minidist:" not in printed
    assert "BAD TERMINATION" not in printed


@pytest.mark.parametrize("exists", [True, False])
def test_a_rank_that_fails_writes_nothing_into_the_folder_for_temporary_files(exists: bool, tmp_path: Path) -> None:
    """It may be ended at any moment, by another rank that fails, and would leave it there."""
    before = tmp_path.stat().st_mtime_ns
    program = "from minidist.mpi import early_end; early_end.be_first_to_fail()"
    folder = tmp_path if exists else tmp_path / "none"
    subprocess.run([sys.executable, "-c", program], env={**PATHS, "TMPDIR": str(folder)}, check=True, timeout=60)
    assert tmp_path.stat().st_mtime_ns == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("call", ["sendrecv", "send", "recv (control)", "barrier"])
def test_a_wait_for_a_rank_that_has_finished_ends_the_job(call: str) -> None:
    """Of uneven batches, for example: MPI would wait for ever."""
    command = [find_mpiexec(), "-n", "3", sys.executable, "-m", "jobs.waits", "0.5", call]
    status, printed = at_a_terminal(command, lambda process, printed: True)
    assert status == 1, printed
    lines = [line for line in printed.splitlines() if "minidist: error:" in line]
    who, many = ("rank 1", "has") if call == "send" else ("rank [12]|ranks 1 and 2", "has|have")
    why = rf"minidist: error: rank 0 waits in phase '.*' \({re.escape(call)}\) for ({who}), which ({many}) finished: .*"
    assert [bool(re.fullmatch(why, line.strip())) for line in lines] == [True], printed
    assert "rank 0 has waited 0.5 s for rank" in printed


def test_a_wait_that_lasts_is_said_and_its_end_too() -> None:
    command = [find_mpiexec(), "-n", "2", sys.executable, "-m", "jobs.waits", "0.5"]

    def wake_when_it_is_said(process: subprocess.Popen, printed: str) -> bool:
        if "has waited" not in printed:
            return False
        os.kill(int(re.findall(r"pid (\d+)", printed)[0]), signal.SIGUSR2)
        return True

    status, printed = at_a_terminal(command, wake_when_it_is_said)
    assert status == 0
    assert "rank 0 has waited 0.5 s for rank 1 in phase 'a phase' (recv)" in printed
    assert re.search(r"rank 0 goes on after \d+ s", printed)


def test_a_rank_ends_with_its_parent() -> None:
    """Where no process stays behind it: as on other systems than Linux."""
    code = """
import os, time
from types import SimpleNamespace
from minidist.mpi.watchdog import Watchdog
ready, is_ready = os.pipe()
if os.fork():
    os.read(ready, 1)
    os._exit(0)
ledger = SimpleNamespace(waits=0, waiting=None)
Watchdog(SimpleNamespace(rank=0, ledger=ledger), end=print, follows=True).start()
os.write(is_ready, b"1")
time.sleep(30)
print("outlived it")
"""
    done = subprocess.run([sys.executable, "-c", code], env=PATHS, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")


LATER = [pytest.param(name, marks=pytest.mark.slow) for name in ("parameter_server", "ring")]


@pytest.mark.parametrize("chapter", ["mapreduce", "zero3", *LATER])
def test_a_chapter_at_a_terminal_shows_its_table_at_the_end(chapter: str, tmp_path: Path) -> None:
    small = ["--layers", "1", "--width", "8", "--heads", "1", "--steps", "2"]
    mapreduce = ["wordcount", str(ROOT / "README.md"), "--output", str(tmp_path / "counts")]
    line = {"mapreduce": mapreduce, "ring": []}.get(chapter, small)
    command = [find_mpiexec(), "-n", "3", sys.executable, "-m", f"minidist.{chapter}", *line]
    status, printed = at_a_terminal(command, lambda process, printed: True)
    assert status == 0, printed
    assert "✓" in printed
    assert "failed" not in printed
