"""What tests do to the processes of a job under mpirun, and what they find of it afterwards: Linux's /proc."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from minidist.launch.launcher import find_mpiexec
from minidist.mpi import shm

ROOT = Path(__file__).parents[2]
PATIENCE = 60  # seconds: with other work on the machine


class Job:
    """A program on ranks, in a folder of its own, and whatever of it is alive."""

    def __init__(self, folder: Path, n: int, *program: str) -> None:
        self.n, self.folder, self.mark = n, folder, f"MINIDIST_TEST={folder}"
        self.segments = set[str]()  # that its processes were seen to have open
        (folder / "tmp").mkdir()
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        with open(folder / "tmp.stdout", "wb") as stdout, open(folder / "tmp.stderr", "wb") as stderr:
            self.process = subprocess.Popen(
                [find_mpiexec(), "-n", str(n), sys.executable, "-m", *program],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder / "tmp"), "MINIDIST_TEST": str(folder)},
                start_new_session=True,
            )

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for left in self.alive():
            os.kill(left, signal.SIGKILL)
        self.process.wait()

    @property
    def stdout(self) -> str:
        return (self.folder / "tmp.stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self.folder / "tmp.stderr").read_text(errors="replace")

    def alive(self) -> list[int]:
        found = processes_of(self.mark)
        self.segments |= segments_of(found)
        return found

    def started(self) -> dict[int, int]:
        """{rank: process} of those that mpirun has started, which stay behind the ranks."""
        return self._ranks(lambda parent: not is_chapter(words_of(parent)))

    def ranks(self) -> dict[int, int]:
        """{rank: process} of the ranks themselves."""
        return self._ranks(lambda parent: is_chapter(words_of(parent)))

    def _ranks(self, of: Callable[[int], bool]) -> dict[int, int]:
        found = {}
        for process in self.alive():
            rank = re.search(rb"\0PMI_RANK=(\d+)", read(process, "environ"))
            if rank and words_of(process).startswith(sys.executable.encode()) and of(parent_of(process)):
                found[int(rank[1])] = process
        return found

    def proxy(self) -> int:
        """mpirun's own process on this machine."""
        (found,) = [process for process in self.alive() if b"hydra_pmi_proxy" in words_of(process)[:200]]
        return found

    def wait_for(self, word: str) -> None:
        """Return when the job has printed it."""
        wait_until(lambda: word in self.stdout + self.stderr or self.process.poll() is not None)
        assert word in self.stdout + self.stderr, (self.stdout, self.stderr)

    def wait_for_mpi(self) -> None:
        """Return when every rank has started it, and nothing of that has a name any more."""
        assert wait_until(lambda: [b"mpich_shm" in read(p, "maps") for p in self.ranks().values()] == [True] * self.n)
        assert wait_until(lambda: not self.segments & segments())

    def status(self) -> int:
        """With which it ends."""
        assert wait_until(lambda: self.process.poll() is not None), f"goes on: {self.stderr}"
        assert self.process.returncode is not None
        return self.process.returncode

    def check_nothing_is_left(self) -> None:
        assert wait_until(lambda: not self.alive()), f"processes are left: {[words_of(p) for p in self.alive()]}"
        assert wait_until(lambda: not self.segments & orphans()), f"{self.segments & orphans()} are left in /dev/shm"
        assert os.listdir(self.folder / "tmp") == []


def send(number: int, processes: Iterable[int]) -> None:
    for process in processes:
        os.kill(process, number)


def processes_of(mark: str) -> list[int]:
    """Processes that have the mark in their environment."""
    everyone = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [process for process in everyone if mark.encode() in read(process, "environ").split(b"\0")]


def words_of(process: int) -> bytes:
    """Its command line."""
    return read(process, "cmdline")


def is_chapter(words: bytes) -> bool:
    """Whether a command line is python -m minidist.NAME. That the folder of mpirun may be called so says nothing."""
    return b"\0minidist." in words


def parent_of(process: int) -> int:
    """0 if it is gone."""
    return int((read(process, "stat").rpartition(b")")[2].split() or [b"", b"0"])[1])


def lives(process: int) -> bool:
    """Whether a process runs. One that has ended, but that no process has waited for (Z), does not."""
    state = read(process, "stat").rpartition(b")")[2].split()
    return bool(state) and state[0] != b"Z"


def read(process: int, name: str) -> bytes:
    """Nothing if it has ended, or is somebody else's."""
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""


def segments() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def segments_of(found: Iterable[int]) -> set[str]:
    """What these processes have open in /dev/shm: other tests' jobs end there, too."""
    return {name.decode() for each in found for name in re.findall(rb" /dev/shm/(\S+)", read(each, "maps"))}


def orphans() -> set[str]:
    return {os.path.basename(path) for path in shm.orphans()}


def wait_until(done: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + PATIENCE
    while not done() and time.monotonic() < give_up:
        time.sleep(0.02)
    return done()
