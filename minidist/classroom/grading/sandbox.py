"""Namespaces for ranks, if the kernel permits them. Their root holds only Python, this package and a small /tmp; they
have no network, no processes except their own, and another user.

They need Linux, and root or the right to make user namespaces. `enter` is for the process from which ranks are forked,
`enter_alone` for each rank. If root may make none, as in most containers, ranks at least run as other users; elsewhere
they have only their limits (see limits.py). The grade says so.
"""

import ctypes
import os
import signal
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from minidist.classroom.grading.copies import PACKAGE, other_copies
from minidist.classroom.grading.syscalls import libc
from minidist.system import processes

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC = 1, 2, 4, 32, 4096, 8192, 1 << 14
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
KEPT = 2 | 4 | 8 | 1024 | 2048  # nosuid, nodev, noexec, noatime, nodiratime
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 24, 38
USERS = 0x5F00_0000  # the first of the ranks' user ids, one for each rank; not in use otherwise
NOBODY = 65534
TMP = "size=8m,nr_inodes=1024,mode=1777"  # small, because files there are memory that counts for no process
DEVICES = {"null": 3, "random": 8, "urandom": 9}  # and no zero: shared memory of it, too, counts for none
PARTS = ("lib", "lib64", "pyvenv.cfg")  # of Python's prefix, which may also be the top of a clone
scratch = ["/tmp"]  # the folder that a rank can write to; another one if Python is in there


def enter(hidden: Sequence[str]) -> str:
    """Move this process into namespaces of its own, without the hidden modules. Returns why that failed, or ""."""
    if sys.platform != "linux":
        return "they are Linux's"
    outside = os.getuid(), os.getgid()
    for users in (False, True) if outside[0] == 0 else (True,):  # root of a container may be no more than a user
        why = attempt(hidden, outside, users)
        if not why:
            if users:
                be_root_of_users(outside)
            else:
                unshare(NEWNS | NEWPID)
            follow_into_processes()
            change_root(hidden)
            return ""
    return f"the kernel lets us make none ({why})"


def attempt(hidden: Sequence[str], outside: tuple[int, int], users: bool) -> str:
    """Try it in a process that then ends, because there is no way back. Returns why it failed, or ""."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            if users:
                be_root_of_users(outside)
            else:
                unshare(NEWNS | NEWPID)
            if not os.fork():
                change_root(hidden)
                unshare(NEWNS | NEWNET | NEWIPC)
                mount("tmpfs", scratch[0], "tmpfs", MS_NOSUID | MS_NODEV, TMP)
                os.write(writing, b"well")
            else:
                os.wait()
        except Exception as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read().decode()
    return "" if said == "well" else said or "the process that tried it was ended"


def enter_alone(rank: int) -> None:
    """Give a rank a /tmp, device files, a network and shared memory of its own, and no privileges."""
    unshare(NEWNS | NEWNET | NEWIPC)
    mount("tmpfs", scratch[0], "tmpfs", MS_NOSUID | MS_NODEV, TMP)
    with suppress(OSError):  # in a user namespace no device can be made: there it keeps the machine's
        make_devices(Path(scratch[0]))
    for shown in ("hidepid=2,subset=pid", "hidepid=2"):  # the latter, for old kernels, also shows counters
        with suppress(OSError):  # where there is a /proc
            mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV, shown)
            mount("none", "/proc", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)  # /proc/self/autogroup
            break
    os.chdir(scratch[0])
    os.environ["TMPDIR"] = os.environ["HOME"] = scratch[0]
    tempfile.tempdir = None  # forget the folder found outside
    become_another(rank)


def make_devices(place: Path) -> None:
    """Cover /dev with device files that no other process has: they are made in `place`, to be tried, and moved."""
    folder = place / "dev"
    folder.mkdir()
    try:
        mount("tmpfs", str(folder), "tmpfs", MS_NOSUID, "size=4k,mode=755")
        for name, minor in DEVICES.items():
            os.mknod(folder / name, stat.S_IFCHR, os.makedev(1, minor))
            os.chmod(folder / name, 0o666)
        mount("none", str(folder), "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)
        mount(str(folder), "/dev", "", MS_MOVE)
    finally:
        libc().umount2(str(folder).encode(), MNT_DETACH)
        folder.rmdir()


def fork_apart() -> int:
    """Fork a process that is number 1 in its own process namespace: from shared numbers, ranks could tell how many
    processes and threads another rank starts. If that is not possible, just fork."""
    try:
        ours = os.open("/proc/self/ns/pid", os.O_RDONLY)
        unshare(NEWPID)  # for those that are forked from now on
    except OSError:
        return os.fork()
    child = os.fork()
    if child and libc().setns(ours, NEWPID):  # go back, or the next one could not be forked
        raise last_error("setns")
    os.close(ours)
    return child


def others_can_run() -> bool:
    """Whether root's processes, as another user, would still find Python and what ranks import."""
    if sys.platform != "linux" or os.getuid() != 0:
        return False
    folders = tempfile.gettempdir()  # where root makes the ranks' folders
    child = os.fork()
    if not child:
        try:
            become_another(0)
            found = [Path(sys.executable), Path(os.__file__), Path(np.__file__), PACKAGE / "__init__.py"]
            reached = all(os.access(file, os.R_OK) for file in found) and os.access(folders, os.X_OK)
            os._exit(os.getuid() == 0 or not reached)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def become_another(rank: int, folder: str = "") -> None:
    """Become a user of this rank's own, without privileges; the folder becomes that user's."""
    for capability in range(64):
        libc().prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    for user in (USERS + rank, NOBODY):
        with suppress(OSError):  # a user namespace may have no others
            if folder:
                os.chown(folder, user, user)
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            break
    drop_capabilities()
    libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc().prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # others of the same user cannot look into its memory


def be_root_of_users(outside: tuple[int, int]) -> None:
    """Make a user namespace, in which this user is root."""
    unshare(NEWUSER | NEWNS | NEWPID)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {outside[0]} 1")
    Path("/proc/self/gid_map").write_text(f"0 {outside[1]} 1")


def follow_into_processes() -> None:
    """Fork number 1 of the new process namespace, and go on as that process; the outer one waits for it. When number 1
    ends, all processes in the namespace end."""
    child = os.fork()
    if child:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os.kill(child, signal.SIGKILL))
        for descriptor in range(3, 256):
            with suppress(OSError):
                os.close(descriptor)  # only the inner process keeps its end of the socket
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    processes.follow(0, signal.SIGKILL)  # which is outside, and so has no number here


def change_root(hidden: Sequence[str]) -> None:
    """Move to a read-only root that holds only what Python needs."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    root = Path(tempfile.gettempdir())  # what was here is out of sight from now on, like all else
    libraries = [Path(path) for path in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")]
    python = [Path(prefix, part) for prefix in (sys.prefix, sys.base_prefix) for part in PARTS]
    python += [Path(path) for path in (sysconfig.get_path("stdlib"), sys.executable, Path(np.__file__).parents[1])]
    shown = outermost([path for path in [*libraries, *python, PACKAGE] if path.exists()])
    if any(Path("/tmp") in path.parents for path in shown):
        scratch[0] = "/scratch"
    folders = {path for path in shown if path.is_dir()}  # before anything is mounted on top of it
    copies = {copy: copy.is_dir() for copy in other_copies(shown)}
    sources = {path: os.open(path, os.O_PATH) for path in shown}
    devices = {name: os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES}
    mount("tmpfs", str(root), "tmpfs", MS_NOSUID, "size=1m,mode=755")
    for path, source in sources.items():
        bind(source, Path(f"{root}{path}"), path in folders)
    for name, source in devices.items():
        bind(source, root / "dev" / name, False, read_only=False)
    for name in hidden:
        if "." in name:  # a lesson's own module is not shown anyway
            blank(root, name, devices["null"])
    for copy, folder in copies.items():
        if folder:
            mount("tmpfs", f"{root}{copy}", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k")
        else:
            bind(devices["null"], Path(f"{root}{copy}"), False)
    for name in ("/proc", "/tmp", scratch[0]):
        Path(f"{root}{name}").mkdir(exist_ok=True)
    with suppress(OSError):  # if /proc is covered in part, as in some containers, there is none
        mount("proc", str(root / "proc"), "proc", MS_NOSUID | MS_NODEV)
    for descriptor in (*sources.values(), *devices.values()):
        os.close(descriptor)
    mount("none", str(root), "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)
    os.chdir(root)
    mount(".", "/", "", MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def outermost(paths: Sequence[Path]) -> list[Path]:
    """The paths, resolved, that are in no other one of them; and links that are in none of these."""
    real = {path.resolve() for path in paths}
    inner = {path for path in real if real & set(path.parents)}
    linked = {path for path in paths if path != path.resolve() and not (real - inner) & set(path.parents)}
    return sorted((real - inner) | linked)


def blank(root: Path, module: str, null: int) -> None:
    """Cover a module's file, and what was compiled from it, with /dev/null."""
    file = PACKAGE.parent / (module.replace(".", "/") + ".py")
    bind(null, Path(f"{root}{file}"), False)
    cache = Path(f"{root}{file.parent}/__pycache__")
    for compiled in cache.glob(f"{file.stem}.*.pyc"):
        bind(null, compiled, False)


def bind(source: int, place: Path, folder: bool, read_only: bool = True) -> None:
    """Mount the file or folder of a descriptor in another place, too."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if folder:
        place.mkdir(exist_ok=True)
    elif not place.exists():
        place.touch()
    mount(f"/proc/self/fd/{source}", str(place), "", MS_BIND | (MS_REC if folder else 0))
    if read_only:
        kept = os.statvfs(place).f_flag & KEPT  # flags of a mount that was made outside cannot be removed
        mount("none", str(place), "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | kept)


def unshare(flags: int) -> None:
    if libc().unshare(flags):
        raise last_error("unshare")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    texts = [text.encode() or None for text in (source, target, kind)]
    if libc().mount(*texts, ctypes.c_ulong(flags), data.encode() or None):
        raise last_error(f"mount {target}")


def drop_capabilities() -> None:
    """Drop this process's effective, permitted and inheritable capabilities."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    libc().capset(header, (ctypes.c_uint32 * 6)())


def last_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
