"""The start of `python -m`, before its program handles errors and Ctrl-C itself: an early end prints one line.

This module loads no MPI and no NumPy.
"""

import signal
import sys
from typing import Any

from minidist import find_clone, how_to_install, how_to_make
from minidist.mpi import early_end, environment
from minidist.system import unix

LEAST = 200_000_000  # bytes of address space: with less, BLAS and MPI end a process with messages of their own


def begin(module: str) -> None:
    """Handle errors and Ctrl-C, and refuse to start with too little memory. module: what `python -m` names."""
    signal.signal(signal.SIGINT, leave)
    unix.let_interrupt()  # which minidist/__init__.py has blocked
    sys.excepthook = say_what_is_missing
    if environment.rank() is not None:
        early_end.launcher()
    else:  # mpirun itself handles these, and says how its ranks end
        for number in unix.ASKING:
            if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores one
                signal.signal(number, leave)
    if module != "minidist":  # the table of contents, and the doctor
        check_memory()


def leave(number: int = signal.SIGINT, _: Any = None) -> None:
    """Handle Ctrl-C: one line, not a traceback from the middle of an import; under mpirun, it ends the job. Without
    mpirun, also SIGTERM and SIGHUP."""
    how = "interrupted" if number == signal.SIGINT else f"ended by signal {number} ({signal.Signals(number).name})"
    early_end.end_job(f"minidist: {how}", 128 + number)


def say_what_is_missing(kind: Any, error: Any, trace: Any) -> None:
    """If NumPy, mpi4py, MPI, Unix or memory is missing, print one line, however many ranks there are; exit status 2."""
    unmapped = ("failed to map segment", "annot allocate memory")
    if issubclass(kind, MemoryError) or (
        issubclass(kind, ImportError) and any(text in str(error) for text in unmapped)
    ):
        refuse("no memory is left to begin with: give it more")
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing in ("numpy", "rich", "safetensors", "greenlet", "mpi4py"):
        what = f"{missing} is not installed for {sys.executable}"
        mend = f"{how_to_mend(missing)}; or see what python -m minidist doctor says"
    elif missing in unix.MODULES:
        what, mend = unix.NEEDED.split(": ")
    elif issubclass(kind, (ImportError, RuntimeError)) and ("load MPI library" in str(error) or "libmpi" in str(error)):
        what, mend = "mpi4py finds no MPI library", "python -m minidist doctor says how to mend it"
    else:
        sys.__excepthook__(kind, error, trace)
        return
    if not environment.rank():
        sys.stderr.write(f"minidist: error: {what}: {mend}\n")
    sys.exit(2)


def how_to_mend(missing: str) -> str:
    """The command that installs all that a chapter needs: in a clone, into an environment of its own. If it is mpi4py
    that is missing, also how to do without."""
    extra, instead = (["mpich"], ", or do without mpirun: --ranks 4") if missing == "mpi4py" else ([], "")
    if find_clone():
        return f"run {how_to_make('setup')}, then source .venv/bin/activate{instead}"
    return f"{how_to_install(*extra)}{instead}"


def check_memory() -> None:
    """Refuse to start if ulimit -v leaves too little memory to a process."""
    if (allowed := unix.limit("RLIMIT_AS")) < LEAST:
        refuse(f"ulimit -v allows {allowed / 1e6:.0f} MB of memory; at least {LEAST / 1e6:.0f} MB are needed")


def refuse(why: str) -> None:
    early_end.end_job(f"minidist: error: {why}", 2)
