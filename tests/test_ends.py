"""Whatever ends a program of minidist that starts others, they end with it, and no folder is left."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from classroom.tiny import RIGHT, lay, make_lessons
from jobs.processes import PATIENCE, ROOT, lives, orphans, read, segments_of, wait_until, words_of
from minidist.launch.launcher import mpiexec_for
from minidist.system import files, processes
from programs import run_python
from sampling import shard_of_this_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

LARGE = 200 << 20  # bytes that the endless submission takes: more than any other process of a grading has
ENDLESS = f"import numpy\nlarge = numpy.ones({LARGE}, 'u1')\nwhile True:\n    pass\n"
PATHS = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
SAYS = {
    signal.SIGINT: (130, "minidist: interrupted\n"),
    signal.SIGTERM: (143, "minidist: ended by signal 15 (SIGTERM)\n"),
    signal.SIGHUP: (129, "minidist: ended by signal 1 (SIGHUP)\n"),
    signal.SIGKILL: (-9, ""),
}


def born(process: int) -> tuple[int, tuple[bytes, ...]]:
    """A process, with the time of its start: its number alone may be given out again."""
    return process, tuple(read(process, "stat").rpartition(b")")[2].split()[19:20]) if lives(process) else ()


def descendants(process: int) -> list[int]:
    found = [process]
    for each in found:  # the list grows while it is read
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, read(each, str(task.relative_to(f"/proc/{each}"))).split())
    return found[1:]


class Program:
    """A program in a folder of its own, and all that it starts."""

    def __init__(self, folder: Path, *command: object) -> None:
        self.folder, self.segments = folder, set[str]()  # what its ranks have open in /dev/shm
        self.family: set[tuple[int, tuple[bytes, ...]]] = set()
        (folder / "tmp").mkdir()
        with open(folder / "tmp.stderr", "wb") as stderr:
            self.process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=folder,
                env={**PATHS, "TMPDIR": str(folder / "tmp"), "HOME": str(folder)},
                start_new_session=True,
            )

    def descendants(self) -> list[int]:
        found = descendants(self.process.pid)
        self.family |= {born(each) for each in found}
        return found

    def living(self) -> list[tuple[int, tuple[bytes, ...]]]:
        found = [each for each in self.family if lives(each[0]) and born(each[0]) == each]
        self.segments |= segments_of(each for each, _ in found)
        return found

    def wait_for(self, *words: bytes, large: bool = False) -> None:
        """Return when it has a descendant with these words in its command line, or one that has LARGE."""

        def is_there() -> bool:
            found = self.descendants()
            seen = [each for each in found if all(word in words_of(each) for word in words)]
            pages = [int((read(each, "statm").split() or [b"0", b"0"])[1]) for each in seen]
            return bool(seen) and (not large or max(pages) * os.sysconf("SC_PAGE_SIZE") > LARGE)

        assert wait_until(lambda: is_there() or self.process.poll() is not None), self.stderr
        assert self.process.poll() is None, self.stderr

    def wait_for_states(self) -> None:
        """Return when it, or a rank that it has started, has model states in a file of its folder."""
        mark = os.fsencode(self.folder / "tmp")

        def are_there() -> bool:
            return any(
                read(each, "maps").count(mark) > 2 for each in (self.process.pid, *descendants(self.process.pid))
            )

        assert wait_until(lambda: are_there() or self.process.poll() is not None), self.stderr
        assert self.process.poll() is None, self.stderr

    @property
    def stderr(self) -> str:
        return (self.folder / "tmp.stderr").read_text(errors="replace")

    def check_end(self, number: signal.Signals) -> None:
        """It ends with the status and the line of the signal. All that it has started ends, and its folders go, after
        SIGKILL with the next program."""
        self.descendants()
        self.living()
        os.kill(self.process.pid, number)
        status, line = SAYS[number]
        assert self.process.wait(PATIENCE) == status, self.stderr
        said = self.stderr.replace("\r", "\n").splitlines(keepends=True)
        assert not line or said[-1:] == [line], self.stderr
        assert "Traceback" not in self.stderr
        assert wait_until(lambda: not self.living()), [words_of(each) for each, _ in self.living()]
        assert wait_until(lambda: not self.segments & orphans()), self.segments & orphans()
        if number == signal.SIGKILL:
            sweep(self.folder / "tmp")
        assert wait_until(lambda: not os.listdir(self.folder / "tmp")), os.listdir(self.folder / "tmp")


def sweep(folder: Path) -> None:
    """As the next program does that has this folder for temporary files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        with files.temporary_folder():
            pass


@contextmanager
def running(folder: Path, *command: object) -> Iterator[Program]:
    program = Program(folder, *command)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()
        for process, _ in program.living():
            os.kill(process, signal.SIGKILL)


def grading(folder: Path, command: str) -> list[object]:
    """A command line that grades an endless submission."""
    make_lessons(folder)
    lay(folder, {"class/ada.py": RIGHT + ENDLESS, "class/bob.py": RIGHT + ENDLESS + "pass\n"})
    line = [sys.executable, "-m", "minidist.classroom", command, "--patience", "600"]
    one = ["lessons/01_tiny", "--submission", "class/ada.py"]
    return [*line, *(one if command == "grade" else ["class", "--lesson", "lessons/01_tiny", "--jobs", "2"])]


GRADERS = list(itertools.product(("grade", "class"), SAYS))
NOW = shard_of_this_run(GRADERS, 4)


@pytest.mark.parametrize(
    ("command", "number"),
    [pytest.param(*of, marks=[pytest.mark.slow] * (of not in NOW), id=f"{of[1].name}-{of[0]}") for of in GRADERS],
)
def test_a_grader_that_is_ended_leaves_nothing(command: str, number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path, *grading(tmp_path, command)) as program:
        program.wait_for(large=True)
        program.check_end(number)


MODULE = [sys.executable, "-m"]
SOME = [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGHUP, signal.SIGINT))]


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        (["minidist", "mutants", "zero3"], b"--json\0report.json"),
        (["minidist", "bugs", "--count"], b"minidist.bugs.probe"),
        (["minidist.bench", "--only", "start"], b"minidist.zero3"),
        (["minidist.bench", "--only", "ranks"], b"minidist.launch.worker"),
        (["minidist", "doctor"], b"-c\0"),
        (["minidist", "papers", "--run"], b"minidist."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("number", [signal.SIGKILL, *SOME], ids=lambda number: number.name)
def test_a_command_that_is_ended_leaves_nothing(
    line: list[str], starts: bytes, number: signal.Signals, tmp_path: Path
) -> None:
    with running(tmp_path, *MODULE, *line) as program:
        program.wait_for(starts)
        program.check_end(number)


@pytest.mark.parametrize("number", SAYS, ids=lambda number: number.name)
def test_ranks_of_one_process_leave_no_files_of_states(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path, *MODULE, "minidist.infinity", "--ranks", 2, "--steps", 100_000) as program:
        program.wait_for_states()
        program.check_end(number)


COMPUTES = """
from minidist.exchange.run import run
from minidist.memory.files import SwapFile

def main(comm, swap):
    while comm.rank:
        pass
    comm.barrier()

run(main, lambda comm: SwapFile("--disk", None), ranks=2, timeout=0.5)
"""


def test_a_rank_that_computes_for_ever_leaves_no_files_of_states(tmp_path: Path) -> None:
    done = run_python("-c", COMPUTES, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    assert "has computed without a message" in done.stderr
    assert os.listdir(tmp_path) == []


LAUNCHES = """
import time

def work(comm):
    time.sleep(600)

if __name__ == "__main__":
    from minidist.launch.one_process import launch_in_one_process

    launch_in_one_process(f"{__file__}:work", 1, timeout=600, watch=lambda last: None)
"""


def test_a_job_of_one_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """Such as a notebook's: its process ends, and the next program removes its folder."""
    lay(tmp_path, {"launches.py": LAUNCHES})
    with running(tmp_path, sys.executable, "launches.py") as program:
        program.wait_for(b"minidist.launch.one_process_main")
        program.check_end(signal.SIGKILL)


INNER = """
import subprocess, sys, time
import pytest
from minidist.classroom.grading.nursery import Nursery

@pytest.mark.parametrize("n", [1, 2])
def test_for_long(n, tmp_path):
    with Nursery() as nursery:
        subprocess.run(["sleep", f"98{n}"])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("workers", [0, 2])
def test_tests_that_are_ended_leave_no_process(workers: int, number: signal.Signals, tmp_path: Path) -> None:
    """Neither pytest's workers, nor what a test has started: where a test runs in the killed process itself, only what
    knows its parent."""
    lay(tmp_path, {"test_inner.py": INNER})
    line = ["pytest", "-n", workers, "-p", "conftest", "-p", "no:cacheprovider", "-c", "/dev/null", "test_inner.py"]
    with running(tmp_path, *MODULE, *line) as program:
        for n in (1, 2)[: max(workers, 1)]:
            program.wait_for(b"sleep", f"98{n}".encode())
        program.family |= {born(each) for each in descendants(program.process.pid)}
        if number == signal.SIGKILL and not workers:
            program.family = {each for each in program.family if b"sleep" not in words_of(each[0])}
        program.process.send_signal(number)
        program.process.wait(PATIENCE)
        assert wait_until(lambda: not program.living()), [words_of(each) for each, _ in program.living()]


@pytest.mark.parametrize("linux", [True, False])
@pytest.mark.parametrize("how", ["kills itself", "ends"])
def test_a_program_ends_with_its_parent_on_any_system(linux: bool, how: str, tmp_path: Path) -> None:
    """Elsewhere than on Linux a shell watches: also there the program unwinds, and a right end is no signal."""
    naps = "for _ in range({}):\n        time.sleep(0.1)"  # one long sleep may begin just after a signal, and miss it
    inner = f"import time\ntry:\n    print('up', flush=True)\n    {naps}\nfinally:\n    print('end')"
    begin = "from minidist.system import processes\nprocesses.unwind_at_signals()\n"
    unwinds = begin + inner.format(0 if how == "ends" else 6000)
    outer = f"""
import os, sys
from minidist.system import processes
processes.LINUX = {linux}
with processes.started([sys.executable, "-c", {unwinds!r}], stderr=-3) as process:
    if "{how}" == "ends":
        process.wait()
    else:
        sys.stdin.readline()
        os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", outer]
    with subprocess.Popen(command, stdin=-1, stdout=-1, env=PATHS, text=True) as parent:
        assert parent.stdout
        assert parent.stdin
        first = parent.stdout.readline()
        parent.stdin.write("now\n" * (how != "ends"))
        parent.stdin.close()
        assert (first, parent.stdout.read()) == ("up\n", "end\n")
    assert parent.returncode == (0 if how == "ends" else -9)


def test_a_program_that_does_not_unwind_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.1)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    with processes.started([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
    assert process.returncode == -signal.SIGKILL


def test_a_hangup_stays_ignored_under_nohup() -> None:
    code = "import os; from minidist.system import processes; processes.unwind_at_signals(); os.kill(os.getpid(), 1)"
    ignore = "import signal; signal.signal(1, signal.SIG_IGN); "
    run = [subprocess.run([sys.executable, "-c", begin + code], env=PATHS, stderr=-3) for begin in ("", ignore)]
    assert [done.returncode for done in run] == [1, 0]


TINY = "--layers 1 --width 8 --heads 2 --context 8 --batch 4 --steps 1 --validate 0"
WRITERS = ["minidist papers", "minidist plan --model gpt2-xl", "minidist.ring --ranks 3"] + [
    f"minidist.{name} {TINY} --ranks 2" for name in ("zero3", "pipeline", "parameter_server", "context_parallel")
]


@pytest.mark.parametrize("command", WRITERS)
def test_a_reader_who_leaves_ends_a_command_without_a_word(command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], stdout=writing, stderr=subprocess.PIPE, env=PATHS, text=True
    )
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode in (0, 141)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_ranks_over_mpi_that_are_ended_leave_no_files_of_states(number: signal.Signals, tmp_path: Path) -> None:
    line = f"-m minidist.infinity {TINY.replace('--steps 1', '--steps 100000')}"
    with running(tmp_path, *mpiexec_for(2), sys.executable, *line.split()) as program:
        program.wait_for_states()
        os.kill(program.process.pid, number)
        program.process.wait(PATIENCE)
        assert wait_until(lambda: not os.listdir(tmp_path / "tmp")), os.listdir(tmp_path / "tmp")
