"""How a chapter runs under mpirun: all ranks start together and end together, whatever happens on one of them.

MPI by itself ends a job only when every rank has called Finalize. If a rank stops with an exception, or calls sys.exit,
the others wait for its messages forever. `run` handles the four ways in which a job ends:

    the command line is wrong      one line on stderr, exit status 2, before any work has started
    every rank returns from main   the exit status that main returned
    one rank fails                 that rank's traceback, or one line if the user can mend it (`Stopped`);
                                   the whole job is aborted with status 1, for a UsageError with 2, for a
                                   file that could not be read or written with 74
    Ctrl-C                         one line, and status 130

A fifth way is out of the rank's hands: it is killed, usually because memory ran out, or a library ends it. mpirun then
names the signal at most, but not the rank. So every rank is forked from a process that waits for it and reports its
end. That process also watches for a sixth way: a rank that is stopped and never goes on (stops.py).
"""

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from minidist.mpi import environment, interface, output, stops
from minidist.mpi.comm import Comm
from minidist.mpi.early_end import be_first_to_fail, common_folder, end_job, say_as_first, wait_until_read
from minidist.mpi.rank import describe, run_rank
from minidist.mpi.watchdog import Watchdog
from minidist.mpi.words import killed_by
from minidist.system import processes

STARTED, ENDED = b"started", b"ended"  # messages from a rank to the process that forked it
_parent: list[int] = []  # the pipe to that process, if there is one

THREADS = 3.0  # seconds that a program's remaining threads get when the job is done


def run(
    main: Callable[[Comm, Any], int | None],
    prepare: Callable[[Comm], Any],
    timeout: float = stops.TIMEOUT,
    can_go_on: stops.CanGoOn = lambda stopped, ranks: False,
) -> NoReturn:
    """Call `main(comm, prepare(comm))` on every rank, and end the process with the status that main returns.

    `prepare` reads and checks the input. It sends nothing, so it may raise UsageError or Finished on only one rank.

    timeout: seconds after which a stopped rank ends the job, unless the command line has another --timeout.
    can_go_on: whether the job can do without the stopped ranks.
    """
    rank = environment.rank()
    if rank is not None and sys.platform == "linux":
        stay_behind(rank, stops.timeout_in(sys.argv[1:], timeout), can_go_on)
    from minidist.mpi.over_mpi import MPI, Progress, world  # a chapter's other uses do without MPI

    output.guard()
    comm = world(interface.ledger())
    common_folder()
    progress = Progress(comm)
    progress.start()
    Watchdog(comm, end=abort, follows=rank is not None).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # which `stay_behind` has blocked
    _tell_parent(STARTED)
    status = 141  # as a shell reports a command that was cut short because its reader had left
    try:
        try:
            status = run_rank(comm, main, prepare)
            sys.stdout.flush()
            status = output.verdict(status)
        except BrokenPipeError:  # the reader (head, less) has left; with more ranks that reader is mpirun
            if comm.size > 1:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be written
    except BaseException as error:
        try:
            be_first_to_fail()
            text, status = describe(error, comm.rank)
            sys.stderr.write(text)
        finally:
            abort(status)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done, and an interrupt would kill Python while it exits
    stops.leave()
    progress.end()
    MPI.Finalize()
    _tell_parent(ENDED)
    last = threading.Timer(THREADS, _leave_threads, [comm.rank, status])
    last.daemon = True
    last.start()
    sys.exit(status)  # Python waits for all threads that are not daemons


def _leave_threads(rank: int, status: int) -> NoReturn:
    """End this process even if threads of its program still run. The job is done; the other ranks may have left."""
    names = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.is_alive()]
    left = [name for name in names if name != threading.main_thread().name]
    if left:
        line = f"minidist: rank {rank} ends, although threads of its program still run: {', '.join(left)}"
        print(line, file=sys.stderr, flush=True)
    processes.undo()
    os._exit(status)


def _tell_parent(word: bytes) -> None:
    for pipe in _parent:
        with suppress(OSError):  # it has gone
            os.write(pipe, word)


def stay_behind(rank: int, timeout: float, can_go_on: stops.CanGoOn) -> None:
    """Fork, and return in the child, which becomes the rank. This process stays, to report how the rank ends (which
    signal killed it, for example), and which ranks are stopped. The rank sends STARTED when it handles Ctrl-C itself.
    Until then it may be inside MPI's Init, where no Python handler ever runs, so this process ends the job.

    mpirun ends the other ranks only when this process ends, so the first report names the cause. Signals that mpirun
    sends to a rank go to both processes, as one group; a signal to this process alone is handed on. The rank must not
    outlive this process, or mpirun would wait for it.
    """
    parent = os.getpid()
    words, to_parent = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    child = os.fork()
    if not child:
        os.close(words)  # SIGINT stays blocked, and waits for the watchdog
        _parent.append(to_parent)
        processes.follow(parent, signal.SIGKILL)
        return

    os.close(to_parent)
    os.set_blocking(words, False)

    heard = bytearray()

    def words_so_far() -> bytes:
        with suppress(BlockingIOError):  # nothing more in the pipe
            heard.extend(os.read(words, 100))
        return bytes(heard)

    watch = stops.StopDetector(rank, child, timeout, can_go_on)

    def hand_on(number: int, _: object) -> None:
        if number == signal.SIGINT and not words_so_far():
            watch.interrupt()
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    watch.begin()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    watch.check_launcher()
    if status < 0:
        be_first_to_fail()
        if not words_so_far():
            watch.take_all_names()
        say_as_first(f"minidist: error: rank {rank} was {killed_by(-status)}")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
        with suppress(OSError):  # SIGKILL only has its default action
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    if words_so_far() == STARTED:
        why = "its program called os._exit, or a library ended it"
        end_job(f"minidist: error: rank {rank} ended in the middle of its work, with status {status}: {why}", 1)
    watch.stay()
    os._exit(status)


def abort(status: int = 1) -> NoReturn:
    """End every rank of the job now, with this exit status. Everything must have been printed before."""
    from minidist.mpi.over_mpi import MPI

    processes.undo()
    with suppress(Exception):  # a program may have closed or replaced them
        sys.stdout.flush()
        sys.stderr.flush()
    wait_until_read(1)
    wait_until_read(2)
    _tell_parent(ENDED)
    with suppress(OSError):  # a program may have closed it
        os.close(2)  # MPI would print another line
    os.open(os.devnull, os.O_WRONLY)  # takes the number that is free now, even if no other one is
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)
