"""Files that are there whole or not at all, also where the power fails in between, and folders of one's own.

Whatever is new is written under another name, its content is synced to the disk, it is renamed, and the folder that has
the name is synced as well (Pillai et al., "All file systems are not created equal", OSDI 2014: without either sync, a
crash may leave the new name without the new content).

A name that the user gives is followed to its end: a link stays, and what it leads to is replaced; what takes what is
written, and keeps nothing (a pipe, a terminal, /dev/null), is written to. A name that minidist makes up inside a folder
is never followed: if there is a link, another user may have planted it.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

MOST_DESCRIPTORS = 256  # among which a shell's are

_ready: dict[str, int] = {}  # streams that are open already, by the names that the user gave

# ---- files -----------------------------------------------------------------------------------------------------------


def open_regular(path: str) -> BinaryIO:
    """A file, to be read. Raises OSError for what is none: of a pipe one would wait for who writes into it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return open(descriptor, "rb")


def write_whole(path: str, content: bytes) -> None:
    """Write a file under a name that minidist makes up: `replacing`."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: str, synced: bool = True) -> Iterator[BinaryIO]:
    """A new file, which takes `path`'s place when all of it is written: a reader sees all of it, or what was there.

    Of several writers each has a file of its own, and the last one stays. A link is replaced, not followed. After a
    failure all is as it was. Raises OSError, with the file's name. synced: return when the disk has it.
    """
    draft = draft_of(path)
    try:
        with open(draft, "xb") as file:  # x: nor follows a link
            with suppress(FileNotFoundError):
                if not os.path.islink(path):
                    shutil.copymode(path, draft)  # what nobody else may read stays so
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
    """A file that the user names, to be written: at the end of all links, or a stream. Raises OSError."""
    stream = open_stream(path)
    if stream is None:
        with replacing(os.path.realpath(path)) as file:
            yield file
    else:
        with os.fdopen(stream, "wb") as file:
            yield file


def draft_of(path: str) -> str:
    """A name beside `path` that nobody has or can foresee."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f"{name[:40]}.{secrets.token_hex(8)}.tmp")


def is_draft(name: str) -> bool:
    """Whether a name is such a one."""
    return re.search(r"\.[0-9a-f]{16}\.tmp$", name) is not None


def draft_beside(path: str) -> str:
    """Such a name beside the file that `writing` replaces; of a stream, among temporary files."""
    folder = tempfile.gettempdir() if is_stream(path) else os.path.dirname(os.path.realpath(path))
    return draft_of(os.path.join(folder, os.path.basename(path)))


def sync_folder(path: str) -> None:
    """Return when the disk has the names in a folder."""
    try:
        folder = os.open(path or ".", os.O_RDONLY)
    except PermissionError:
        return  # a letter box: who may not look into it cannot wait for it
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# ---- streams ---------------------------------------------------------------------------------------------------------


def is_stream(path: str) -> bool:
    """Whether a name that the user gives leads to what is written to, not replaced."""
    with suppress(OSError):
        found = os.stat(path)
        return _descriptor_of(found) is not None or stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)
    return False


def open_stream(path: str) -> int | None:
    """A descriptor of the stream that a name leads to; None: it leads to a file, or to nothing yet. Raises OSError for
    a name that cannot be followed, or leads to something else."""
    if path in _ready:
        return _ready.pop(path)
    try:
        found = os.stat(path)  # which refuses, as opening does, a link that another user has put into /tmp
    except FileNotFoundError:
        return None
    own = _descriptor_of(found)
    if own is not None:
        for printed in (sys.stdout, sys.stderr):
            printed.flush()  # what was printed before comes before
        return os.dup(own)  # opened anew, a file would begin again at its beginning, and a socket cannot be
    if stat.S_ISREG(found.st_mode):
        return None
    if not is_stream(path):
        raise OSError(errno.EINVAL, "it is not a file", path)
    try:
        stream = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)  # does not wait for a pipe's reader
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "no process reads this pipe", path) from None
        raise
    os.set_blocking(stream, True)
    return stream


def reserve(path: str) -> bool:
    """Whether a name leads to a stream; then it is open from now on until it is written: a reader who has come stays.
    Raises OSError for one that cannot be written."""
    stream = open_stream(path)
    if stream is not None:
        _ready[path] = stream
    return stream is not None


def _descriptor_of(found: os.stat_result) -> int | None:
    """Under which number this process writes to a file already, if it does: /dev/stdout may lead to a file, `> log`."""
    for descriptor in range(MOST_DESCRIPTORS):
        with suppress(OSError):  # there is none of this number
            mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
            if mode != os.O_RDONLY and os.path.samestat(os.fstat(descriptor), found):
                return descriptor
    return None


# ---- folders ---------------------------------------------------------------------------------------------------------


def make_own_folder(path: str | Path) -> None:
    """Make, or find, a folder that is this user's, and into which no other user can look or write. No link is followed,
    and nothing that another user has put there is used. Raises OSError."""
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
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise refusal from None
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise refusal
        os.fchmod(folder, 0o700)  # of one that an earlier run has made
    finally:
        os.close(folder)


def open_to_readers(path: str) -> None:
    """Let a folder of one's own have the mode of any other: what it holds is finished."""
    mask = os.umask(0o077)
    os.umask(mask)
    os.chmod(path, 0o777 & ~mask)


def is_own_folder(path: str | Path) -> bool:
    """Whether it is a folder, no link to one, and belongs to the user. Raises OSError if there is nothing."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def remove(path: str) -> None:
    """Take a file or a folder away, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)
