"""How a chapter runs in one process: `python -m minidist.zero3 --ranks 4`, without MPI.

The program is the same as under mpirun (`minidist/mpi/run.py`), and so are its words, its report and its exit status.
What processes have of their own cannot be the same:

- Ranks take turns, so nothing overlaps in seconds, and the time of a step is that of all ranks together.
- No MPI library counts the messages a second time, and the kernel does not tell one rank's memory from another's.
- A signal reaches all ranks. `--inject kill:...` of MapReduce kills them all, as MPICH does when one is killed.

A deadlock is known at once. A rank that computes for ever, without a message, would keep the others waiting: a thread
ends the process after --timeout. It does not if there is only one rank, or under a debugger.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from minidist.exchange.debuggers import debugged, stop_in_ranks
from minidist.exchange.one_process import World
from minidist.exchange.rules import Deadlock
from minidist.mpi import environment, output
from minidist.mpi.comm import Comm, nearest_line
from minidist.mpi.early_end import INTERRUPTED
from minidist.mpi.rank import describe, run_rank
from minidist.system import processes

LOOK = 0.5  # seconds from one look at the running rank to the next


def run(
    main: Callable[[Comm, Any], int | None], prepare: Callable[[Comm], Any], ranks: int, timeout: float
) -> NoReturn:
    """Call `main(comm, prepare(comm))` on every rank, and end the process with the status that main returns.

    timeout: seconds without a message after which a rank that computes ends the process; 0: never.
    """
    environment.ranks_here = ranks
    output.guard()
    signal.signal(signal.SIGINT, interrupt)
    world = World(ranks)
    stop_in_ranks(lambda: world.turns.running)
    if ranks > 1 and timeout > 0:
        threading.Thread(target=watch, args=(world, timeout), daemon=True).start()
    status = 141  # as a shell reports a command that was cut short because its reader had left
    try:
        be_rank = world.rank_of(lambda comm: run_rank(comm, main, prepare))
        status = max(world.turns.run(be_rank, range(ranks)))
        sys.stdout.flush()
        status = output.verdict(status)
    except BrokenPipeError:  # the reader (head, less) has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be written
    except Deadlock as deadlock:
        sys.stderr.write(f"minidist: error: {str(deadlock)[0].lower()}{str(deadlock)[1:]}\n")
        status = 1
    except BaseException as error:
        if type(error).__name__ == "BdbQuit":  # the user has left the debugger, which handles it
            raise
        text, status = describe(error, world.turns.running)
        sys.stderr.write(text)
    with suppress(OSError):
        sys.stdout.flush()
    sys.exit(status)


def interrupt(*_: object) -> NoReturn:
    """Handle Ctrl-C: one line, and the end, whatever the ranks are doing."""
    end("minidist: interrupted", INTERRUPTED)


def end(line: str, status: int) -> NoReturn:
    processes.undo()
    with suppress(Exception):  # a program may have closed or replaced it; or a signal has come while it is written
        sys.stdout.flush()
    with suppress(Exception):
        print(line, file=sys.stderr, flush=True)
    os._exit(status)


def watch(world: World, timeout: float) -> None:
    """A thread: end the process when no message has been delivered for `timeout` seconds: one rank computes for ever,
    or all look for messages that never come. Time in which the process was stopped, or the machine slept, does not
    count."""
    moves, switches, silent, looked = -1, 0, 0.0, time.monotonic()
    while not (world.turns.ended or debugged()):
        time.sleep(LOOK)
        now = time.monotonic()
        passed, looked = min(now - looked, 2 * LOOK), now
        if world.moves != moves or world.turns.ended:
            moves, switches, silent = world.moves, world.turns.switches, 0.0
            continue
        silent += passed
        if silent < timeout:
            continue
        what = "ranks have looked for messages, and none has come,"
        if world.turns.switches == switches:
            where = nearest_line(sys._current_frames()[threading.main_thread().ident or 0])
            what = f"rank {world.turns.running} has computed without a message, at {where},"
        end(f"minidist: error: {what} for {timeout:g} s (as --timeout says; 0: for ever)", 1)
