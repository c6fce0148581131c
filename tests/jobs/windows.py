"""Command lines in a Python that lacks mpi4py, and what Windows lacks: python windows.py '["minidist.ring --ranks 2"]'.

Prints a list of [exit status, standard output, standard error] as JSON. What Windows has and Linux lacks (drives, other
ends of lines, files that cannot be removed while they are open) only Windows itself can show.
"""

# Of Python's own modules, those that would not load without what is hidden: on Windows they take another way.
import contextlib
import glob  # noqa: F401
import io
import json
import os
import runpy
import shutil
import signal
import socket  # noqa: F401
import subprocess
import sys
import tempfile  # noqa: F401
import warnings
from types import SimpleNamespace
from typing import Any

MODULES = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "mpi4py")
OF_OS = """fork forkpty getuid geteuid getgid getegid getpgid getpgrp setsid killpg wait3 wait4 waitid WNOHANG WUNTRACED
    O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_NOCTTY O_CLOEXEC O_SYNC O_ACCMODE fchmod fchown chown lchown sysconf confstr
    pread pwrite preadv pwritev readv writev ttyname openpty sched_yield sched_getaffinity sched_setaffinity mkfifo
    mknod statvfs fstatvfs nice sync fdatasync getloadavg posix_spawn posix_fallocate posix_fadvise lockf chroot
    ctermid sendfile memfd_create getpriority getresuid getrandom register_at_fork pipe2 fchdir set_blocking"""
OF_SIGNAL = """SIGKILL SIGALRM SIGUSR1 SIGUSR2 SIGHUP SIGQUIT SIGSTOP SIGCONT SIGTSTP SIGCHLD SIGPIPE SIGXCPU SIGWINCH
    SIGTTIN SIGTTOU SIGIO SIGBUS SIGSYS SIGTRAP SIGURG SIGPROF SIGVTALRM setitimer getitimer alarm pause pthread_kill
    pthread_sigmask sigwait sigpending ITIMER_REAL ITIMER_VIRTUAL ITIMER_PROF SIG_BLOCK SIG_UNBLOCK SIG_SETMASK"""


def hide() -> None:
    """Let this process lack them from now on."""
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ModuleNotFoundError
    on_linux: Any  # modules that do there by other means what they do here by these
    for on_linux in (subprocess, shutil):
        on_linux.os, on_linux.signal = SimpleNamespace(**vars(os)), SimpleNamespace(**vars(signal))
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
        for name in names.split():
            with contextlib.suppress(AttributeError):  # of a newer Python, or of another system
                delattr(module, name)
    sys.addaudithook(without_proc)


def without_proc(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "there is no /proc", str(arguments[0]))


def run(program: str, *arguments: str) -> tuple[Any, str, str]:
    """What `python -m PROGRAM ARGUMENTS` ends with and prints."""
    from minidist.cli import start

    sys.argv, out, err, status = [program, *arguments], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            start.begin(program)
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            status = ended.code  # type: ignore[assignment]
        except Exception as error:
            try:
                sys.excepthook(type(error), error, error.__traceback__)
                status = 1
            except SystemExit as ended:
                status = ended.code  # type: ignore[assignment]
    return status, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    hide()
    warnings.filterwarnings("ignore", module="runpy")  # another line has imported what this one runs
    print(json.dumps([run(*line.split()) for line in json.loads(sys.argv[1])]))
