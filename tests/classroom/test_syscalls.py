"""What the kernel refuses to a graded rank, and what it still does for it."""

import ctypes
import fcntl
import json
import mmap
import os
import platform
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from minidist.classroom.grading import sandbox, syscalls
from minidist.classroom.grading.nursery import Nursery
from minidist.classroom.grading.router import route
from minidist.exchange.rules import Rules

NAMESPACE_OF_USERS = 0x10000000
CLONE = {"x86_64": 56, "aarch64": 220}

X86 = platform.machine() == "x86_64"
FUTEX, IOPRIO_GET, WAKE = (202, 252, 1) if X86 else (98, 31, 1)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in CLONE, reason="a filter for Linux on x86-64 and ARM64"
)


def called(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)


def address_in_library() -> ctypes.c_void_p:
    """Of a word that all processes have of the same file, which a queue needs no right to write."""
    place = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)
    return ctypes.c_void_p((place.value or 0) & ~3)


def ways() -> dict[str, Callable[[], object]]:
    """By which two ranks could talk past the wire, or one get what is not counted."""
    shared, null = open(os.__file__, "rb"), open("/dev/null", "r+b")  # noqa: SIM115
    return {
        "a lock of a file": lambda: fcntl.flock(shared, fcntl.LOCK_SH),
        "a lock of bytes": lambda: fcntl.lockf(null, fcntl.LOCK_EX, 8, 64),
        "a look at locks": lambda: fcntl.fcntl(null, fcntl.F_GETLK, bytes(64)),
        "a lock of an open file": lambda: fcntl.fcntl(null, syscalls.F_OFD_SETLK, bytes(64)),
        "a watched file": lambda: called("inotify_init1", 0),
        "a key": lambda: called("syscall", *((250, 0) if platform.machine() == "x86_64" else (219, 0)), -3, 0),
        "shared memory": lambda: called("shmget", 1234, 4096, 0o1666),
        "a queue": lambda: called("msgget", 1234, 0o1666),
        "a socket": lambda: socket.socket(socket.AF_UNIX),
        "another's priority": lambda: os.getpriority(os.PRIO_PROCESS, os.getppid()),
        "another's group": lambda: os.getpgid(os.getppid()),
        "another's processors": lambda: os.sched_getaffinity(os.getppid()),
        "another's limits": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE),
        "another's policy": lambda: os.sched_getscheduler(os.getppid()),
        "another's memory": lambda: called("ptrace", 16, os.getppid(), 0, 0),
        "memory without an owner": lambda: os.memfd_create("room"),
        "shared memory without a file": lambda: mmap.mmap(-1, 4096),
        "shared pages of a file that all can read": lambda: mmap.mmap(shared.fileno(), 4096, prot=mmap.PROT_READ),
        "a pair of sockets": lambda: socket.socketpair(),
        "pages in a pipe": lambda: called("vmsplice", os.pipe()[1], 0, 0, 0),
        "a list of watched files": lambda: select.epoll(),
        "an attribute of a file": lambda: os.setxattr(null.fileno(), "user.room", b""),
        "a set of rules": lambda: called("syscall", 444, 0, 0, 1),
        "a session": lambda: os.setsid(),
        "children that are forgotten": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        "a larger pipe": lambda: fcntl.fcntl(os.pipe()[0], syscalls.OTHERS[0], 1 << 20),
        "the time of a file": lambda: os.utime("/dev/null"),
        "the time of an open file": lambda: os.utime(null.fileno(), (1, 1)),
        "a hint that stays with a file": lambda: fcntl.fcntl(shared, syscalls.OTHERS[1], bytes(8)),
        "a queue at an address in a library": lambda: called("syscall", FUTEX, address_in_library(), WAKE, 1),
        "pages of a file in memory": lambda: os.posix_fadvise(shared.fileno(), 0, 0, os.POSIX_FADV_DONTNEED),
        "a look at pages of a file": lambda: os.preadv(shared.fileno(), [bytearray(1)], 0),
        "a priority of all of a user": lambda: os.setpriority(os.PRIO_USER, 0, 5),
        "a priority at the disk": lambda: called("syscall", IOPRIO_GET, 3, 0),
        "the kernel's log": lambda: called("klogctl", 10, 0, 0),
        "users of its own": lambda: called("unshare", NAMESPACE_OF_USERS),
        "a child with users of its own": lambda: called("syscall", CLONE[platform.machine()], NAMESPACE_OF_USERS | 17),
    }


def test_what_ranks_inherit_is_not_shared(tmp_path: Path) -> None:
    """Flags and owner of an open file belong to all that have inherited it: a rank could set what another one reads."""
    (tmp_path / "on_ranks.py").write_text(
        "import fcntl, os\n\ndef call(comm):\n"
        "    mine = [int(name) for name in os.listdir('/proc/self/fd')]\n"
        "    for one in mine if comm.rank == 0 else ():\n"
        "        try:\n            fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) | os.O_APPEND)\n"
        "        except OSError:\n            pass\n"
        "    comm.barrier()\n"
        "    found = []\n"
        "    for one in mine if comm.rank else ():\n"
        "        try:\n            found += [one] if fcntl.fcntl(one, fcntl.F_GETFL) & os.O_APPEND else []\n"
        "        except OSError:\n            pass\n"
        "    return found\n"
    )
    with Nursery(tmp_path / "on_ranks.py", isolate=True) as nursery:
        job = route(nursery, f"{tmp_path}/on_ranks.py:call", [(), ()], Rules("eager"), 30)
    assert (job.status, job.values) == ("ok", [[], []]), job.report


def test_each_rank_has_device_files_of_its_own(tmp_path: Path) -> None:
    """What one does to them, another one could see; without root they are the machine's."""
    (tmp_path / "on_ranks.py").write_text(
        "import os\n\nimport numpy as np\n\ndef call(comm):\n"
        "    with open('/dev/null', 'r+b') as null, open('/dev/urandom', 'rb') as random:\n"
        "        assert null.write(b'x') == 1 and null.read() == b'' and len(random.read(8)) == 8\n"
        "    files = [list(os.stat(f'/dev/{name}')[1:3]) for name in os.listdir('/dev')]\n"
        "    comm.sendrecv(np.zeros(1), 1 - comm.rank, np.empty(1), 1 - comm.rank)\n"  # both are there at a time
        "    return files\n"
    )
    with Nursery(tmp_path / "on_ranks.py", isolate=True) as nursery:
        job = route(nursery, f"{tmp_path}/on_ranks.py:call", [(), ()], Rules("eager"), 30)
        apart = not nursery.isolation and can_make_devices(tmp_path / "null")
    assert job.status == "ok", job.report
    first, second = ({tuple(each) for each in value} for value in job.values)
    assert len(first) == len(second) == len(sandbox.DEVICES)
    if apart:
        assert not first & second


def can_make_devices(file: Path) -> bool:
    try:
        os.mknod(file, stat.S_IFCHR, os.makedev(1, 3))
        file.open().close()
    except OSError:
        return False
    return True


def work() -> None:
    """What honest programs do."""
    fcntl.fcntl(0, fcntl.F_GETFD)
    os.sched_getaffinity(0)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    subprocess.run([sys.executable, "-S", "-c", ""], check=True)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.getsignal(signal.SIGCHLD)
    mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
        file.flush()
        mmap.mmap(file.fileno(), 1)  # shared, of a file of its own
    with open(os.__file__, "rb") as file:
        mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)  # as libraries are loaded


def try_all() -> dict[str, bool]:
    """Whether each is refused, in this process."""
    refused = {}
    for name, way in ways().items():
        try:
            way()
            refused[name] = False
        except (PermissionError, BlockingIOError):  # the latter: as if a futex had changed
            refused[name] = True
    return refused


def test_ranks_cannot_talk_past_the_wire() -> None:
    """Each way is open before, or the test would show nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            why = syscalls.refuse()
            said = {"why": why, "refused": {} if why else try_all()}
            if not why:
                work()
            os.write(writing, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as answer:
        said = json.loads(answer.read())
    if said["why"]:
        pytest.skip(said["why"])
    assert said["refused"] == dict.fromkeys(ways(), True)
    shared = open(os.__file__, "rb")  # noqa: SIM115
    fcntl.flock(shared, fcntl.LOCK_SH)  # open to this process
    assert os.getpgid(os.getppid()) >= 0
