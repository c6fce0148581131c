"""One runner for everything that starts ranks from Python: the tests, the notebook, the grader and the benchmarks.

    job = launch("exercise.py:ring_all_reduce_demo", 4, size=1000, timeout=20)
    job.values        what the function returned on each rank, or JobFailed with a readable report

Each rank calls `function(comm, *args, **kwargs)`. The launcher itself never loads MPI, and it never hangs. A rank that
raises an exception, leaves or disappears ends the job at once. A deadlock ends it within seconds, and anything else at
the timeout; then the report says which rank waits for which. However a job ends, none of its processes is left. With
`started`, the job runs in parallel with the caller.
`minidist.launch.worker` describes the files through which the two sides communicate.
"""

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minidist import UsageError, how_to_install
from minidist.exchange import waits
from minidist.exchange.waits import Look, Looks
from minidist.launch import encode
from minidist.launch.job import JobOutcome, Watch
from minidist.launch.main_stack import format_stack
from minidist.launch.records import PRINTED, collect, last_output, too_long
from minidist.launch.worker import locked
from minidist.mpi import shm
from minidist.system import unix
from minidist.system.files import temporary_folder

AFTER_ONE_LEFT = 0.25  # seconds after a rank has finished, until the first look at whether the others wait for it


def launch(
    target: str, n: int, *args: Any, timeout: float = 60.0, watch: Watch | None = None, **how: Any
) -> JobOutcome:
    """Call `target` on `n` ranks and return when the job and all its processes have ended.

    target is "module:function" or "path/to/file.py:function"; a file's folder is put on the ranks' sys.path, before the
    entries of this process. Arguments and results must be values that encode.py can write. timeout is in seconds, for
    the whole job. how: arguments of `started`, and of the target. Raises UsageError if there is nothing to start, or no
    room for it. What happens on the ranks is in the returned Job, never an exception. With `watch`, so is a
    KeyboardInterrupt.
    """
    with started(target, n, *args, **how) as running:
        return running.wait(timeout, watch)


@contextmanager
def started(
    target: str,
    n: int,
    *args: Any,
    env: dict[str, str] | None = None,
    cwd: str | Path | None = None,
    mpiexec: str | None = None,
    **kwargs: Any,
) -> Iterator["Running"]:
    """The same job, which runs while the context lasts; its remaining processes are killed at the end. env adds to the
    environment."""
    if n < 1:
        raise UsageError(f"a job needs at least 1 rank, not {n}")
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise UsageError(f"{target!r} names no function; write module:function or path/to/file.py:function")
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise UsageError(f"there is no file {place}")
        target = f"{Path(place).resolve()}:{name}"
    if reason := shm.limits(n) or shm.shortage(n):
        raise UsageError(reason)

    with _job_folder(n) as folder:
        encode.save(folder / "job", (target, args, kwargs))
        running = Running(folder, n, _start(folder, n, mpiexec, env or {}, cwd))
        try:
            yield running
        finally:
            running.end()


# ---- starting -------------------------------------------------------------------------------------------------------


@contextmanager
def _job_folder(n: int) -> Iterator[Path]:
    """A folder for a job's files. When this process ends, its lock on `launcher` is released, and the ranks end."""
    with temporary_folder() as folder:
        for rank in range(n):
            (folder / str(rank)).mkdir()
        with open(folder / "launcher", "w") as file:
            unix.lock(file.fileno())
            yield folder


def _start(
    folder: Path, n: int, mpiexec: str | None, env: dict[str, str], cwd: str | Path | None
) -> subprocess.Popen[bytes]:
    # -u: what a rank has printed is in its file even if it is killed; -P: the folder it runs in is not on sys.path.
    worker = [sys.executable, "-u", "-P", "-m", "minidist.launch.worker", str(folder)]
    with open(folder / "mpiexec", "wb") as output:
        return subprocess.Popen(
            [*mpiexec_for(n, mpiexec), *worker],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=here({**OPEN_MPI_AS_ROOT, **env}),
            cwd=cwd,
            **unix.APART,  # Ctrl-C reaches only this process, which then ends the job
        )


def here(variables: dict[str, str]) -> dict[str, str]:
    """The environment of ranks: they import what this process can import, from the same places."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, **variables}


OPEN_MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # containers run as root


def mpiexec_for(n: int, mpiexec: str | None = None) -> list[str]:
    """The beginning of a command line that starts n ranks on this machine, however many cores it has. Raises UsageError
    if there is no mpiexec."""
    mpiexec = mpiexec or find_mpiexec()
    return [mpiexec, *(["--oversubscribe"] if is_open_mpi(mpiexec) else []), "-n", str(n)]


def find_mpiexec() -> str:
    """The mpiexec of this Python's environment, or else the first one on PATH. Raises UsageError if there is none."""
    unix.check()
    beside_python = shutil.which("mpiexec", path=os.path.dirname(sys.executable))
    found = beside_python or shutil.which("mpiexec")
    if found is None:
        raise UsageError(f"there is no mpiexec; install an MPI, for example with: {how_to_install('mpich')}")
    return found


def has_mpi() -> bool:
    """Whether ranks can be started over MPI."""
    try:
        return bool(find_mpiexec()) and importlib.util.find_spec("mpi4py") is not None
    except UsageError:
        return False


@functools.cache
def is_open_mpi(mpiexec: str) -> bool:
    """Whether this mpiexec is Open MPI's."""
    answer = subprocess.run([mpiexec, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    return "Open MPI" in answer or "OpenRTE" in answer


# ---- watching -------------------------------------------------------------------------------------------------------


@dataclass
class Running:
    """A job that runs."""

    folder: Path
    n: int
    process: subprocess.Popen[bytes]
    start: float = field(default_factory=time.monotonic)
    looks: int = 0  # taken so far
    ended: bool = False

    def wait(self, timeout: float, watch: Watch | None = None) -> JobOutcome:
        """Wait until the job has ended, or end it `timeout` seconds from now; return how it ended. If it has an
        observer, a KeyboardInterrupt also ends it."""

        def look_on() -> bool:
            if watch:
                watch(functools.partial(last_output, self.folder, self.n))
            return False

        try:
            job = self.wait_until(look_on, timeout)
        except KeyboardInterrupt:
            if not watch:
                raise
            looks = self._look()
            self.end()
            job = collect(self.folder, self.n, ("interrupted", "was interrupted", looks), self._seconds())
        assert job is not None
        return job

    def wait_until(self, done: Callable[[], bool], timeout: float) -> JobOutcome | None:
        """Return None as soon as `done()`; the job goes on. If the job ends before that, hangs, or takes longer than
        `timeout` seconds from now, end it and return how it ended."""
        hung = self._watch(done, timeout)
        if hung is None and done():
            return None
        self.end()
        return collect(self.folder, self.n, hung and ("hung", hung[1], hung[0]), self._seconds())

    def _seconds(self) -> float:
        return time.monotonic() - self.start

    def _watch(self, done: Callable[[], bool], timeout: float) -> tuple[Looks, str] | None:
        """Return None when it is done, the job has ended or a rank has failed. If it hangs or takes too long, return
        what the ranks were doing, and what the report says of the job."""
        before: Looks = [None] * self.n
        begin = time.monotonic()
        deadline, next_look, hung = begin + timeout, begin + 1.0, None
        left = self._count_left()
        while self.process.poll() is None:
            if any((self.folder / str(rank) / record).exists() for rank in range(self.n) for record in FAILURES):
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(1.0)  # MPI ends the other ranks; `end` kills those that it forgets
                return None
            if hung or done():
                return hung
            if (talker := too_long(self.folder, self.n)) is not None:
                return self._look(), f"hung: rank {talker} had printed more than {PRINTED >> 20} MB"
            if left != (left := self._count_left()):  # the others may wait for it now: look again from the beginning
                begin = time.monotonic()
                next_look = begin + AFTER_ONE_LEFT
            if time.monotonic() > min(deadline, next_look):
                looks = self._look()
                if stuck := waits.find_stuck(before, looks):
                    hung = looks, f"hung: {waits.find_cause(looks, stuck)}"
                elif time.monotonic() > deadline:
                    hung = looks, waits.tell_late(looks, timeout)
                # After 1, 2, 4, 8 seconds, and then regularly: most deadlocks show at once, crowded ranks take longer.
                before, next_look = looks, time.monotonic() + min(time.monotonic() - begin, waits.LOOK_INTERVAL)
            else:
                time.sleep(0.01)
        return None

    def _count_left(self) -> int:
        """The number of ranks that have finished."""
        return sum((self.folder / str(rank) / "result").exists() for rank in range(self.n))

    def _look(self) -> Looks:
        """Ask every rank what it is doing; wait for the answers for at most 2 seconds."""
        self.looks += 1
        (self.folder / f"look.{self.looks}").touch()
        give_up = time.monotonic() + 2.0
        answers = [self.folder / str(rank) / f"seen.{self.looks}" for rank in range(self.n)]
        finished = [self.folder / str(rank) / "result" for rank in range(self.n)]
        while self.process.poll() is None and time.monotonic() < give_up:
            if all(a.exists() or f.exists() for a, f in zip(answers, finished, strict=True)):
                break
            time.sleep(0.02)
        looks: Looks = []
        for answer, result in zip(answers, finished, strict=True):
            look: Look | None = Look(finished=True)
            if not result.exists():
                try:
                    said = encode.load(answer)
                    look = Look(**{**said, "stack": format_stack(said["stack"])})
                except Exception:  # no answer, or not the worker's: a student's program may write anything
                    look = None
            looks.append(look)
        return looks

    def end(self) -> None:
        """Kill the remaining processes of the job, and return when they have ended.

        Every rank is in a process group of its own or in mpiexec's. Its group exists as long as its lock is held, so
        that no other process can be killed by mistake. A rank that mpiexec is just starting finds the job's folder
        gone.
        """
        if self.ended:
            return
        self.ended = True
        alive = [self.folder / str(rank) / "alive" for rank in range(self.n)]
        segments: set[str] = set()  # of ranks that are still in MPI's Init
        if self.process.poll() is None:
            texts = [file.read_text() for file in alive if locked(file)]
            segments = shm.stopped([self.process.pid, *(int(text) for text in texts if text.isdecimal())])
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        give_up = time.monotonic() + 5.0
        while (left := [file for file in alive if locked(file)]) and time.monotonic() < give_up:
            for file in left:
                with suppress(ProcessLookupError, ValueError):
                    os.killpg(int(file.read_text()), signal.SIGKILL)
            time.sleep(0.01)
        shm.remove(segments)


FAILURES = ("error", "exit")  # records of a rank that failed or disappeared
