"""What Unix has and Windows lacks, and what is done there instead. No other module asks which of them it runs on.

On Windows, chapters run in one process (--ranks). All that works between processes (mpirun, the launcher, the grader)
needs Unix, and imports Unix's modules itself: without them, `cli/start.py` refuses it in one line.

This module loads no MPI and no NumPy, and keeps to the syntax of Python 3.8.
"""

from __future__ import annotations

import errno
import importlib
import math
import os
import signal
import threading
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Callable, Iterator  # noqa: UP035 (Python 3.8's collections.abc takes no [...])

from minidist import UsageError

MODULES = ("fcntl", "resource", "termios")  # of Unix alone: a module that imports one needs Unix


def _unix(name: str) -> Any:
    """A module of MODULES; None on Windows."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


_fcntl, _resource, _termios = map(_unix, MODULES)
HERE = _fcntl is not None  # whether this is Unix
_in_turn = threading.Lock()

NEEDED = (
    "this needs Unix, and Windows is none: wsl --install, and work inside it; chapters also run here, with --ranks 4"
)

# Flags of os.open: 0 where there is none. Windows has neither pipes nor terminals among its files.
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
FOLDER = getattr(os, "O_DIRECTORY", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

LOCKS = HERE  # whether folders can be locked; if not, nobody knows which are in use, and none is swept away
APART: Any = {"start_new_session": True} if HERE else {"creationflags": 0x200}  # of Popen: Ctrl-C is not the child's
ASKING = [signal.SIGTERM, *([signal.SIGHUP] if HERE else [])]  # signals that ask a process to end
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # ends a process at once; on Windows the second does


def check() -> None:
    """Raise UsageError if this is no Unix."""
    if not HERE:
        raise UsageError(NEEDED)


# ---- files -----------------------------------------------------------------------------------------------------------


def open_folder(path: str | Path) -> int:
    """A descriptor of a folder. Raises OSError if there is none, or a link. Windows opens no folders: there it is a
    descriptor of nothing."""
    if not HERE and not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return os.open(path if HERE else os.devnull, os.O_RDONLY | FOLDER | NO_LINK)


def lock(descriptor: int, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file or folder until it is closed. Raises BlockingIOError if another process has locked it (shared:
    for itself alone), or waits for that process. See LOCKS."""
    if LOCKS:
        _fcntl.flock(descriptor, (_fcntl.LOCK_SH if shared else _fcntl.LOCK_EX) | (0 if wait else _fcntl.LOCK_NB))


def is_written(descriptor: int) -> bool:
    """Whether a descriptor is open for writing. Raises OSError if it is not open. On Windows none has a name."""
    return HERE and _fcntl.fcntl(descriptor, _fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


def is_mine(found: os.stat_result) -> bool:
    """Whether a file belongs to this user. Windows keeps lists of rights instead; there, the folder for temporary files
    belongs to one user."""
    return not HERE or found.st_uid == os.geteuid()


def make_private(folder: int) -> None:
    """Let no other user open a folder, given by its descriptor."""
    if HERE:
        os.fchmod(folder, 0o700)


def wait_for_reader(stream: int) -> None:
    """Let writes to a stream wait, although it was opened without waiting."""
    if HERE:
        os.set_blocking(stream, True)


def read_at(file: FileIO, buffer: memoryview, place: int) -> int:
    """Read from a place in a file that other threads may read at the same time; returns the number of bytes. Raises
    OSError."""
    if HERE:
        return os.preadv(file.fileno(), [buffer], place)
    with _in_turn:  # Windows has one place a file
        file.seek(place)
        return file.readinto(buffer)


def write_at(file: FileIO, buffer: memoryview, place: int) -> int:
    """Write to a place in a file, as `read_at` reads."""
    if HERE:
        return os.pwrite(file.fileno(), buffer, place)
    with _in_turn:
        file.seek(place)
        return file.write(buffer)


def unread(pipe: int) -> int:
    """Bytes in a pipe that its reader has not read yet; 0 if it cannot be known. Raises OSError if this is no pipe."""
    if not HERE:
        return 0
    count = bytearray(4)
    _fcntl.ioctl(pipe, _termios.FIONREAD, count)
    return int.from_bytes(count, "little")


# ---- processes, and the machine -----------------------------------------------------------------------------------


def let_interrupt() -> None:
    """Let Ctrl-C come that has been blocked."""
    if HERE:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def signal_group(leader: int, number: int) -> None:
    """Send a signal to a process, and on Unix to all of its group."""
    (os.killpg if HERE else os.kill)(leader, number)


def allow_more_files() -> None:
    """Let this process have as many files open as the system allows."""
    if HERE:
        _, most = _resource.getrlimit(_resource.RLIMIT_NOFILE)
        _resource.setrlimit(_resource.RLIMIT_NOFILE, (most, most))


def limit(name: str) -> float:
    """What the shell (ulimit) allows this process. name: in Unix's `resource`, such as "RLIMIT_AS". Infinity: all."""
    allowed = _resource.getrlimit(getattr(_resource, name))[0] if HERE else math.inf
    return math.inf if HERE and allowed == _resource.RLIM_INFINITY else allowed


def memory() -> float:
    """Bytes of memory of this machine; infinity if Python does not know them."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if HERE else math.inf


@contextmanager
def ticking(seconds: float, call: Callable[..., object]) -> Iterator[None]:
    """Call a handler in the main thread every `seconds` seconds. Windows has no such timer: there it is
    never called."""
    if not HERE:
        yield
        return
    before = signal.signal(signal.SIGALRM, call)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def terminal_of(descriptor: int) -> str:
    """The name of a terminal. Raises OSError if it has none."""
    with suppress(AttributeError):  # Windows
        return os.ttyname(descriptor)
    raise OSError("this terminal has no name")
