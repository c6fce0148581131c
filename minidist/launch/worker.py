"""What mpiexec starts, once for each rank of a job of launcher.py: `python -m minidist.launch.worker FOLDER`.

It forks. The child becomes the rank (rank_main.py); the parent stays to see how it ends. A rank talks to its
launcher through files, because MPI may be the very thing that is stuck. In the job's folder:

    launcher            locked by the launcher while it lives
    job                 the target function and its arguments
    look.1, look.2 ...  made by the launcher each time it asks what the ranks are doing

and for each rank, in a folder named after it:

    alive               the rank's process group; locked while the rank lives
    started             made when the rank has MPI
    stdout, stderr      what it printed
    result              what the function returned and what the rank sent, once it has returned
    error               the traceback, if it failed
    seen.1, seen.2 ...  where the rank was at look 1, 2 ...
    exit                how its process ended, and when

A lock tells better than a process id whether a process is alive: the kernel releases it when the process ends, however
it ends, and never gives it to another process.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from minidist.mpi import environment, shm
from minidist.system import unix
from minidist.system.files import replacing


def main() -> None:
    """Fork: the child becomes the rank, and the parent stays to see how it ends."""
    folder = Path(sys.argv[1])
    mine = folder / str(environment.rank())
    alive = open(mine / "alive", "w")  # noqa: SIM115  (held until both processes have ended)
    alive.write(str(os.getpgid(0)))
    alive.flush()
    unix.lock(alive.fileno())
    child = os.fork()
    if child:
        keep(child, folder, mine)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):  # before anything is imported that could print
        os.dup2(os.open(mine / name, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.excepthook = sys.__excepthook__  # the launcher's report has room for all output of every rank
    from minidist.launch.rank_main import be_rank

    be_rank(folder, mine)


def locked(path: Path) -> bool:
    """Whether some process holds the lock on `path`, that is, lives."""
    try:
        with open(path) as file:
            unix.lock(file.fileno(), shared=True)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def keep(child: int, folder: Path, mine: Path) -> NoReturn:
    """Wait for the rank, end it if the launcher has died, and write down how it ended.

    MPI ends the other ranks when this process ends, and not before, so the first record is that of the rank that
    disappeared first. mpiexec cannot tell that, because it sees several ranks end at once.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # MPICH's way to tell a rank that another one has ended
    segments: set[str] = set()

    def look(*_: object) -> None:
        if not locked(folder / "launcher"):
            os.kill(child, signal.SIGSTOP)
            segments.update(shm.segments(child))
            os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    shm.remove(segments)
    if not (mine / "result").exists():
        with replacing(str(mine / "exit"), synced=False) as file:
            file.write(f"{os.waitstatus_to_exitcode(status)} {time.monotonic()}".encode())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
