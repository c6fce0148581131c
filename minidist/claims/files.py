"""Files that a run leaves: a report for machines, and whatever else must be there whole or not at all."""

import errno
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from minidist import UsageError
from minidist.mpi import output


def check_readable(option: str, path: str) -> int:
    """How many bytes a file has. Raises UsageError for what cannot be read from beginning to end by every rank: a
    folder, a pipe, a device, or nothing."""
    try:
        kind = os.stat(path).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise UsageError(f"cannot read {option} {path}: it is not a file")
        with open(path, "rb"):  # which says better what is wrong with a folder
            return os.path.getsize(path)
    except OSError as error:
        raise UsageError(f"cannot read {option} {path}: {error.strerror}") from None


def open_regular(path: str) -> BinaryIO:
    """A file, to be read. Raises OSError for what is none: of a pipe one would wait for who writes into it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return open(descriptor, "rb")


def check_writable(option: str, path: str | None) -> None:
    """Raise UsageError unless a file can be made at `path`: better now than after the training."""
    if path is None:
        return
    folder, name = os.path.split(path)
    try:
        if not os.path.isdir(folder or "."):
            raise UsageError(f"{option} {path}: there is no folder {folder}")
        # What is there is replaced by a new file: not a folder, and not /dev/null.
        if not name or (os.path.exists(path) and not os.path.isfile(path)):
            raise UsageError(f"{option} {path}: cannot write there: it is not a file")
        with suppress(FileNotFoundError):
            os.lstat(path)  # a name may be too long
        with _private(path):
            pass
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot write there: {error.strerror}") from None


def check_apart(outputs: dict[str, str | None], inputs: dict[str, str | None]) -> None:
    """Raise UsageError if an output would overwrite an input or another output, by whatever names and links they go.

    outputs, inputs: by option, the path that was given.
    """
    seen: dict[tuple[int, int, str], str] = {}
    for option, path in [*inputs.items(), *outputs.items()]:
        if path is None:
            continue
        first = seen.setdefault(_identity(path), option)
        if option in outputs and first != option:
            raise UsageError(f"{option} {path} would overwrite the file of {first}: give it one of its own")


def _identity(path: str) -> tuple[int, int, str]:
    """What two paths have in common if they lead to one file, whether it exists or not: device, inode, name."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino, ""
    folder, name = os.path.split(os.path.realpath(path))
    with suppress(OSError):
        found = os.stat(folder)
        return found.st_dev, found.st_ino, name
    return 0, 0, path


def check_room(option: str, path: str | None, nbytes: int) -> None:
    """Raise UsageError if a disk has too little room for a file that will have about so many bytes."""
    if path is None:
        return
    free = shutil.disk_usage(os.path.dirname(path.rstrip("/")) or ".").free
    if nbytes > free:
        raise UsageError(f"{option} {path} needs {nbytes / 1e6:,.1f} MB; the disk has {free / 1e6:,.1f} MB left")


def write_json(path: str, document: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Write a report for machines; "-" is standard output."""
    text = json.dumps(document, indent=1) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        write_output(path, text.encode())


def write_output(path: str, content: bytes) -> None:
    """Write what a run leaves, whole. If that cannot be, a line says so, the work goes on, and the program ends with
    another status than 0."""
    try:
        write_whole(path, content)
    except OSError as error:
        output.lost(path, error)


def write_whole(path: str, content: bytes) -> None:
    """Write a file so that a reader sees all of it, or the file that was there before: under another name, renamed.

    Whoever else writes there at the same time writes a file of his own, and the last one stays. A link is replaced, not
    followed. After a failure, an OSError, all is as it was.
    """
    with _private(path) as file:
        with suppress(FileNotFoundError):
            shutil.copymode(path, file.name)  # what nobody else may read stays so
        file.write(content)
        file.close()
        os.replace(file.name, path)


def draft_of(path: str) -> str:
    """A name beside `path` that nobody has or can foresee."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f"{name[:40]}.{secrets.token_hex(8)}.tmp")


def is_draft(name: str) -> bool:
    """Whether a name is such a one."""
    return re.search(r"\.[0-9a-f]{16}\.tmp$", name) is not None


@contextmanager
def _private(path: str) -> Iterator[BinaryIO]:
    """A new file beside `path`, of a name that nobody has or can foresee; gone afterwards, unless it was renamed."""
    with open(draft_of(path), "xb") as file:  # x: nor follows a link
        try:
            yield file
        finally:
            with suppress(FileNotFoundError):
                os.unlink(file.name)
