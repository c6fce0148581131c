"""Programs that this one starts: they end with it, however it ends. The signals that ask it to end, and its end.

A program that `started` has started gets SIGTERM when its parent ends, also by SIGKILL. On Linux the kernel sends it
(PR_SET_PDEATHSIG); elsewhere a shell does, which reads a pipe whose other end closes with the parent. A program of
minidist then unwinds, and so ends what it has started itself. What it leaves if SIGKILL hits it, too, the next
`files.temporary_folder` removes.

Linux knows as parent the thread that starts a program: it has to live as long as the program.

This module keeps to the syntax of Python 3.8, for the doctor.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Callable, Iterator, Sequence  # noqa: UP035 (Python 3.8's collections.abc takes no [...])

from minidist.system import unix

PATIENCE = 10.0  # seconds that a program gets to unwind before it is killed
PR_SET_PDEATHSIG = 1  # of Linux's prctl: sends a signal when the parent ends
LINUX = sys.platform == "linux"
GUARD = 'read -r word || kill -TERM "$0"'  # read fails when no process can write to its pipe any more

_libc: Any = ctypes.CDLL(None) if LINUX else None  # loaded now, and not between a fork and the program that it becomes
_running: set[subprocess.Popen[Any]] = set()


@contextmanager
def started(command: Sequence[Any], **how: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a program; it runs while the context lasts, and gets SIGTERM at the end. how: of subprocess.Popen."""
    if LINUX:
        how["preexec_fn"] = partial(follow, os.getpid())
    process = subprocess.Popen(command, **how)
    _running.add(process)
    guard = guarded(process.pid) if unix.HERE and not LINUX else None  # Windows lets programs outlive their parent
    try:
        yield process
    finally:
        end(process)
        _running.discard(process)
        if guard:
            guard.communicate(b"it has ended\n")


def run(
    command: Sequence[Any], timeout: float | None = None, stdin: str | None = None, **how: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, or until an exception (Ctrl-C, a timeout) ends the wait and the program.

    stdin: text for its standard input. how: of subprocess.Popen. Raises subprocess.TimeoutExpired.
    """
    with started(command, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, **how) as process:
        printed, errors = process.communicate(stdin, timeout)
    return subprocess.CompletedProcess(command, process.returncode, printed, errors)


def end(process: subprocess.Popen[Any]) -> None:
    """End a program, if it runs: by SIGTERM, and if it does not unwind in time, by SIGKILL."""
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    with suppress(BrokenPipeError), process:  # closes its pipes: communicate cannot be called again
        pass


def terminate_all() -> None:
    """Send SIGTERM to every program that a thread of this process has started."""
    for process in [*_running]:
        process.terminate()


def follow(parent: int, number: int = signal.SIGTERM) -> None:
    """Let the kernel send this process a signal when its parent ends: Linux only. It ends now if that has happened."""
    _libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def guarded(process: int) -> subprocess.Popen[Any]:
    """Start a shell that sends SIGTERM to a process when this one has ended without a word to the shell."""
    return subprocess.Popen(["sh", "-c", GUARD, str(process)], stdin=subprocess.PIPE, start_new_session=True)


# ---- signals that ask this process to end ----------------------------------------------------------------------------


class Ended(KeyboardInterrupt):
    """A signal asks this process to end. Like Ctrl-C, it unwinds: what runs is ended, what is temporary is removed."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number} ({signal.Signals(number).name})")
        self.number = number


def unwind_at_signals() -> None:
    """Let SIGTERM and SIGHUP raise Ended, once, in the main thread. Under nohup, SIGHUP stays ignored."""
    asking = [number for number in unix.ASKING if signal.getsignal(number) != signal.SIG_IGN]

    def unwind(number: int, _: object) -> None:
        for each in asking:
            signal.signal(each, signal.SIG_IGN)  # what is unwound now is not to be cut short
        raise Ended(number)

    for number in asking:
        signal.signal(number, unwind)


# ---- an end at once, which does not unwind ---------------------------------------------------------------------------

# What to undo if this process ends without Python's own end: show a terminal's cursor again.
to_undo: list[Callable[[], object]] = []


def undo() -> None:
    """Undo it all once, whichever thread comes first."""
    while to_undo:
        with suppress(Exception):
            to_undo.pop()()
