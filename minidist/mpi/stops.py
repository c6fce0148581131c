"""Which ranks of this machine do not answer, because a signal has stopped them; and what then happens to the job.

The processes behind the ranks (run.py) watch. They run no MPI, and live from before MPI starts until the ranks have
left. Twice a second, each asks the kernel; the first one that runs handles all ranks of the machine. So a rank that
computes for long is never suspected, ranks spend no time on this, and nothing is written anywhere.

A watcher adds up the time between its looks, 1 s at most for each: time in which the watcher itself was stopped, or the
machine slept, does not count.
"""

import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from minidist.mpi import environment, shm
from minidist.mpi.early_end import INTERRUPTED, abort, be_first_to_fail, launcher, say_as_first, say_last
from minidist.mpi.words import name_ranks

LOOK = 0.5  # seconds from one look to the next
SAID = 20.0  # seconds after which a silence is reported; after half of the timeout, if that is earlier
TIMEOUT = 120.0  # seconds after which it ends the job
STOPPED = "T"  # by a signal, in the kernel's notation; a process in a debugger is "t"
LAUNCHER_ENDED = "mpirun's process on this machine has been killed, and the ranks that it started end with it"
FINISHED = "rank, finished"  # the name of such a process, of 15 characters at most
HALTED = (STOPPED, "Z", "")  # stopped; ended, but not yet seen by its parent; gone

CanGoOn = Callable[[set[int], int], bool]  # (stopped ranks, all ranks): whether the job goes on


def timeout_in(arguments: list[str], default: float) -> float:
    """The --timeout of a command line that its program has not read yet. The program refuses a wrong one later."""
    found = environment.option_in(arguments, "--timeout", float)
    return default if found is None else found


class StopDetector:
    """What the process behind a rank sees. timeout: seconds; 0: none."""

    def __init__(self, rank: int, child: int, timeout: float, can_go_on: CanGoOn) -> None:
        self.rank, self.child, self.timeout, self.can_go_on = rank, child, timeout, can_go_on
        (self.launcher, self.to_mpirun), self.looked = launcher(), time.monotonic()
        self.size = environment.ranks()
        self.ranks = {os.getpid(): rank}  # of each process that mpirun started on this machine
        self.silent: dict[int, float] = {}  # rank -> seconds for which it has been stopped
        self.told: set[int] = set()
        self.has_left = False  # whether our own rank has
        self.is_first = environment.local_rank() == 0  # whether no watcher of a lower rank runs on this machine
        self.began = start_of(self.launcher)  # another rank of the job may have made its segment before this moment

    def begin(self) -> None:
        """Start looking, even while the main thread waits."""
        self.check_launcher()
        signal.signal(signal.SIGALRM, lambda *_: self.look())
        signal.setitimer(signal.ITIMER_REAL, LOOK, LOOK)

    def stay(self) -> None:
        """Our own rank has left. Return when no rank needs us: mpirun also waits for stopped ranks."""
        self.has_left = True
        self.look()
        while self.silent:
            signal.pause()

    def look(self) -> None:
        """Report the ranks that do not answer. End the job if that lasts, and the ranks if their mpirun is gone."""
        self.check_launcher()
        now = time.monotonic()
        passed, self.looked = min(now - self.looked, 2 * LOOK), now
        seen = self.see()
        stopped = {rank for rank, processes in seen.items() if processes}
        if not self.has_left and self.can_go_on(stopped, self.size):
            stopped = set()
        for rank in self.silent.keys() - stopped:
            seconds = self.silent.pop(rank)
            if rank in self.told and not any(stopped_of(process) for process, of in self.ranks.items() if of == rank):
                say(f"rank {rank} goes on after {seconds:.0f} s")
            self.told.discard(rank)
        for rank in stopped:
            self.silent[rank] = self.silent[rank] + passed if rank in self.silent else 0.0
        may_end = self.timeout > 0 and len(stopped) != self.size  # if no rank runs, the job is suspended, and waits
        self.tell(seen, may_end)
        late = [rank for rank, seconds in self.silent.items() if seconds >= self.timeout]
        if may_end and late:
            self.end(late)

    def see(self) -> dict[int, list[int]]:
        """The stopped processes of each rank of this machine. If the watcher of a lower rank runs, only of the ranks
        below that one: its watcher handles the others."""
        self.find()
        seen: dict[int, list[int]] = {}
        self.is_first = True
        for process, rank in sorted(self.ranks.items(), key=lambda item: item[1]):
            if rank < self.rank and state(process) not in HALTED:
                self.is_first = False
                break
            seen[rank] = stopped_of(process)
        return seen

    def find(self) -> None:
        """Find the processes that mpirun has started on this machine."""
        known, started = self.ranks, children(self.launcher)
        found = {process: known[process] if process in known else rank_of(process) for process in started}
        stuck = [process for process, rank in found.items() if rank < 0 and state(process) == STOPPED]
        if stuck and environment.local_ranks() == self.size:  # before the kernel shows which rank it is
            missing = sorted({*range(self.size)} - {*found.values()})
            found |= zip(sorted(stuck), missing, strict=False)  # mpirun starts them in order
        self.ranks = {os.getpid(): self.rank, **{process: rank for process, rank in found.items() if rank >= 0}}

    def tell(self, seen: dict[int, list[int]], may_end: bool) -> None:
        """Report each rank that has been stopped for long, once."""
        after = min(SAID, self.timeout / 2 or SAID)
        if new := [rank for rank, seconds in self.silent.items() if seconds >= after and rank not in self.told]:
            processes = " ".join(str(process) for rank in new for process in seen[rank])
            then = f"; after {self.timeout:g} s the job ends (--timeout)" if may_end else ""
            say(f"{not_answered(new, after)}: stopped by a signal, and goes on after kill -CONT {processes}{then}")
            self.told.update(new)

    def end(self, ranks: list[int]) -> NoReturn:
        """End the job because of these ranks."""
        self.take_all_names()
        say_last(f"minidist: error: {not_answered(ranks, self.timeout)}: the job ends (as --timeout says)")
        if self.has_left:  # mpirun no longer listens to us, but sees them die
            kill([process for process, rank in self.ranks.items() if rank in ranks])
        abort(1)

    def interrupt(self) -> NoReturn:
        """End the job at Ctrl-C, while ranks are inside MPI's Init."""
        take_names([os.getpid()])  # a rank that still imports may be the first, and end us
        be_first_to_fail()
        self.take_all_names()
        say_as_first("minidist: interrupted")
        abort(INTERRUPTED)

    def take_all_names(self) -> None:
        """Stop all ranks of this machine, and remove their segments from /dev/shm: they are about to be killed."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.find()
        stop([process for process in self.ranks if process != os.getpid()])  # one may be about to fork its rank
        take_names(list(self.ranks))
        shm.remove(shm.orphans(self.began))  # of ranks that have been killed

    def check_launcher(self) -> None:
        """If mpirun's process on this machine was killed, end our rank, and the ranks whose watchers are stopped. That
        process read our output; mpirun still reads what it had to say itself."""
        if os.getppid() == self.launcher:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self.is_first:
            say_as_first(f"minidist: error: {LAUNCHER_ENDED}", self.to_mpirun)
        halted = [process for process in self.ranks if state(process) == STOPPED]
        take_names([os.getpid(), *halted])
        kill([self.child, *halted])
        os._exit(1)


def not_answered(ranks: list[int], seconds: float) -> str:
    return f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} not answered for {seconds:g} s"


def take_names(started: list[int]) -> None:
    """Stop the ranks that these processes have forked, and remove their segments from /dev/shm."""
    ranks = [child for process in started for child in children(process)]
    stop(ranks)
    shm.remove({segment for rank in ranks for segment in shm.of(rank)})


def kill(processes: list[int]) -> None:
    """Kill these processes: the ranks that they have forked die with them."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def say(line: str) -> None:
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())


# ---- what Linux knows of processes -----------------------------------------------------------------------------------


def children(process: int) -> list[int]:
    """The children of a process, of all its threads; none if it is gone."""
    with suppress(OSError):
        tasks = Path(f"/proc/{process}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def state(process: int) -> str:
    """The state of a process, as a letter of proc(5); "" if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    return ""


def stopped_of(process: int) -> list[int]:
    """Which of these are stopped: a process that mpirun has started, and the rank that it has forked."""
    return [each for each in (process, *children(process)) if state(each) == STOPPED]


def stop(processes: list[int]) -> None:
    """Stop these processes; waits 1 s at most. Each first finishes its system call, such as making a segment."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
    give_up = time.monotonic() + 1.0
    while any(state(process) not in HALTED for process in processes) and time.monotonic() < give_up:
        time.sleep(0.001)


def leave() -> None:
    """Let the other ranks of this machine see that this one has finished its program; `finished` looks for it."""
    with suppress(OSError):  # not Linux
        Path("/proc/self/comm").write_text(FINISHED, encoding="ascii")


def finished() -> set[int]:
    """The ranks of this machine that have finished their program: MPI keeps them until all ranks have."""
    started = children(parent(os.getppid()))  # by mpirun; each of these has forked its rank
    return {rank_of(process) for process in started if any(name(child) == FINISHED for child in children(process))}


def name(process: int) -> str:
    """The name of a process, which it may choose; "" if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    return ""


def parent(process: int) -> int:
    """The parent of a process; 0 if it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def start_of(process: int) -> float:
    """When a process started, in seconds since 1970; infinity if it is gone."""
    with suppress(OSError):
        ticks = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[19])
        boot = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)
        return boot + ticks / os.sysconf("SC_CLK_TCK")
    return math.inf


def rank_of(process: int) -> int:
    """The rank of a process, if mpirun has made it one; -1 if not, or not yet."""
    with suppress(OSError):
        text = Path(f"/proc/{process}/environ").read_text(encoding="utf-8", errors="replace")
        found = environment.rank(dict(entry.partition("=")[::2] for entry in text.split("\0")))
        return -1 if found is None else found
    return -1
