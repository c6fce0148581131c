"""Files that exist whole or not at all, even after a power failure, and folders that only their owner can open.

New content is written under another name and synced to the disk. Then the file is renamed, and its folder is also
synced (Pillai et al., "All file systems are not created equal", OSDI 2014: without either sync, a crash may leave the
new name without the new content).

A name given by the user is followed to its end: a link stays, and the file that it leads to is replaced. A stream (a
pipe, a terminal, /dev/null) is written to. A name that minidist makes up inside a folder is never followed: if there is
a link, another user may have planted it.
"""

import errno
import glob
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from minidist import FileFailed
from minidist.system import unix

MOST_DESCRIPTORS = 256  # the shell's are among the first
WORK = "minidist-work-"  # begins the names of temporary folders, in the system's folder for these

_ready: dict[str, int] = {}  # streams that are already open, by the names that the user gave


@contextmanager
def on_disk(verb: str = "read or write", path: str | Path = "") -> Iterator[None]:
    """Turn an error of the disk into FileFailed, which ends the work with one line: "cannot VERB PATH: ...". Without a
    path, the error must name it."""
    try:
        yield
    except FileFailed:
        raise
    except OSError as error:
        raise FileFailed(f"cannot {verb} {path or error.filename}: {error.strerror or error}") from None


# ---- files -----------------------------------------------------------------------------------------------------------


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for anything else: a pipe would wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | unix.NO_WAIT)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return open(descriptor, "rb")


def write_whole(path: str, content: bytes) -> None:
    """Write a whole file under a name that minidist makes up, as `replacing` does."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: str, synced: bool = True) -> Iterator[BinaryIO]:
    """A new file that takes `path`'s place once it is completely written: a reader sees all of it, or the old file.

    If there are several writers, each writes its own file, and the last one stays. A link is replaced, not followed. A
    failure changes nothing. Raises OSError with the file's name. synced: return only when the disk has the content.
    """
    draft = draft_of(path)
    try:
        with open(draft, "xb") as file:  # x: does not follow a link
            with suppress(FileNotFoundError):
                if not os.path.islink(path):
                    shutil.copymode(path, draft)  # a private file stays private
            yield file
            file.flush()
            if synced:
                os.fsync(file.fileno())
        os.replace(draft, path)
        if synced:
            sync_folder(os.path.dirname(path))
    except OSError as error:
        error.filename = path
        raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


@contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """Open a file that the user names for writing: the file at the end of all links, or a stream. Raises OSError."""
    stream = open_stream(path)
    if stream is None:
        with replacing(os.path.realpath(path)) as file:
            yield file
    else:
        with os.fdopen(stream, "wb") as file:
            yield file


def draft_of(path: str) -> str:
    """A new, unpredictable name in the folder of `path`."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f"{name[:40]}.{os.urandom(8).hex()}.tmp")


def is_draft(name: str) -> bool:
    """Whether `draft_of` made this name."""
    return re.search(r"\.[0-9a-f]{16}\.tmp$", name) is not None


def draft_beside(path: str) -> str:
    """A draft's name next to the file that `writing` replaces; for a stream, in the folder for temporary files."""
    folder = tempfile.gettempdir() if is_stream(path) else os.path.dirname(os.path.realpath(path))
    return draft_of(os.path.join(folder, os.path.basename(path)))


def sync_folder(path: str) -> None:
    """Wait until the names in a folder are on the disk."""
    try:
        folder = os.open(path or ".", os.O_RDONLY)
    except PermissionError:
        return  # the user may write into this folder, but not read it, and so cannot sync it
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# ---- streams ---------------------------------------------------------------------------------------------------------


def is_stream(path: str) -> bool:
    """Whether a name that the user gives leads to a stream, which is written to and not replaced."""
    with suppress(OSError):
        found = os.stat(path)
        return _descriptor_of(found) is not None or stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)
    return False


def open_stream(path: str) -> int | None:
    """A descriptor of the stream that a name leads to. None: it leads to a file, or to nothing yet. Raises OSError if
    the name cannot be followed, or leads to something else."""
    if path in _ready:
        return _ready.pop(path)
    try:
        found = os.stat(path)  # like opening, it refuses a link that another user has put into /tmp
    except FileNotFoundError:
        return None
    own = _descriptor_of(found)
    if own is not None:
        for printed in (sys.stdout, sys.stderr):
            printed.flush()  # earlier output stays earlier
        return os.dup(own)  # a file opened again would start at its beginning; a socket cannot be opened
    if stat.S_ISREG(found.st_mode):
        return None
    if not is_stream(path):
        raise OSError(errno.EINVAL, "it is not a file", path)
    try:
        stream = os.open(path, os.O_WRONLY | unix.NO_WAIT)  # does not wait for a pipe's reader
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "no process reads this pipe", path) from None
        raise
    unix.wait_for_reader(stream)
    return stream


def reserve(path: str) -> bool:
    """Whether a name leads to a stream. If so, it stays open from now on until it is written, so that its reader stays,
    too. Raises OSError for a stream that cannot be written."""
    stream = open_stream(path)
    if stream is not None:
        _ready[path] = stream
    return stream is not None


def _descriptor_of(found: os.stat_result) -> int | None:
    """The descriptor under which this process already writes to a file, if any: with `> log`, /dev/stdout is a file."""
    for descriptor in range(MOST_DESCRIPTORS):
        with suppress(OSError):  # this number is not open
            if unix.is_written(descriptor) and os.path.samestat(os.fstat(descriptor), found):
                return descriptor
    return None


# ---- folders ---------------------------------------------------------------------------------------------------------


def make_own_folder(path: str | Path) -> None:
    """Make, or find, a folder of this user that no other user can read or write. No link is followed, and nothing that
    another user has put there is used. Raises OSError."""
    parent, name = os.path.split(path)
    try:
        Path(os.path.realpath(parent), name).mkdir(mode=0o700, parents=True)
    except FileExistsError:
        pass
    except OSError as error:
        error.filename = str(path)
        raise
    refusal = OSError(errno.EPERM, f"{path} is not a folder of yours", str(path))
    try:
        folder = unix.open_folder(path)
    except OSError:
        raise refusal from None
    try:
        if not unix.is_mine(os.fstat(folder)):
            raise refusal
        unix.make_private(folder)  # an earlier run may have made it
    finally:
        os.close(folder)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A private folder in the system's folder for temporary files, locked, and removed at the end of the context.
    Those that killed processes have left are removed."""
    path = Path(tempfile.mkdtemp(prefix="minidist-"))
    held = lock(path)
    try:
        path = path.rename(path.with_name(path.name.replace("minidist-", WORK)))  # only now may others sweep it
        sweep(path.parent, WORK)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(held)


def lock(folder: Path, shared: bool = False) -> int:
    """Lock a folder until the returned descriptor is closed, at the latest when this process ends. Raises
    BlockingIOError if the folder is locked; if shared, waits until it is not."""
    held = unix.open_folder(folder)
    try:
        unix.lock(held, shared, wait=shared)
    except OSError:
        os.close(held)
        raise
    return held


def sweep(parent: Path, prefix: str) -> None:
    """Remove folders of killed processes: those of this user, with this prefix, that no process has locked."""
    for left in parent.glob(f"{glob.escape(prefix)}*") if unix.LOCKS else ():
        with suppress(OSError):  # a process uses it, or has just removed it
            if is_own_folder(left):
                held = lock(left)
                shutil.rmtree(left, ignore_errors=True)
                os.close(held)


def open_to_readers(path: str) -> None:
    """Give a private folder the usual mode: its content is finished."""
    mask = os.umask(0o077)
    os.umask(mask)
    os.chmod(path, 0o777 & ~mask)


def is_own_folder(path: str | Path) -> bool:
    """Whether `path` is a folder, not a link, that belongs to the user. Raises OSError if nothing is there."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and unix.is_mine(found)


def remove(path: str) -> None:
    """Remove a file or a folder, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)
