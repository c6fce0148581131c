"""Files that a run reads and writes: checks before the work starts, and a report for machines."""

import errno
import json
import math
import os
import shutil
import stat
import sys
import tempfile
from contextlib import suppress
from typing import Any

from minidist import UsageError
from minidist.mpi import output
from minidist.system import files


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file. Raises OSError if that cannot be known; Path.is_file of Python 3.14 returns False."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder. Raises OSError likewise."""
    return stat.S_ISDIR(_mode(path))


def _mode(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return 0
        raise


def check_readable(option: str, path: str) -> int:
    """The size of a file in bytes. Raises UsageError if not every rank can read it from beginning to end: a folder, a
    pipe, a device, or a missing file."""
    try:
        kind = os.stat(path).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise UsageError(f"cannot read {option} {path}: it is not a file")
        with open(path, "rb"):  # for a folder, its error says more
            return os.path.getsize(path)
    except OSError as error:
        raise UsageError(f"cannot read {option} {path}: {error.strerror}") from None


def check_writable(option: str, path: str | None) -> None:
    """Raise UsageError unless a file can be made at `path`, or a stream there can be written to: better now than after
    the training."""
    if path is None:
        return
    try:
        target = os.path.realpath(path)
        if not os.path.isdir(os.path.dirname(target)):
            folder = os.path.dirname(target if os.path.islink(path) else path)
            raise UsageError(f"{option} {path}: there is no folder {folder}")
        if not os.path.basename(path):
            raise UsageError(f"{option} {path}: cannot write there: it is not a file")
        if not files.reserve(path):
            check_folder_takes_files(os.path.dirname(target))
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot write there: {error.strerror}") from None


def check_folder_takes_files(folder: str | os.PathLike[str]) -> None:
    """Raise OSError unless a new file can be made in a folder. The file has no name, so no kill leaves it there."""
    tempfile.TemporaryFile(dir=folder).close()


def check_apart(outputs: dict[str, str | None], inputs: dict[str, str | None]) -> None:
    """Raise UsageError if an output would overwrite an input or another output, under any name or link.

    outputs, inputs: {option: path}.
    """
    seen: dict[tuple[int, int, str], str] = {}
    for option, path in [*inputs.items(), *outputs.items()]:
        if path is None or files.is_stream(path):  # nothing in a stream is overwritten
            continue
        first = seen.setdefault(_identity(path), option)
        if option in outputs and first != option:
            raise UsageError(f"{option} {path} would overwrite the file of {first}: give it one of its own")


def _identity(path: str) -> tuple[int, int, str]:
    """Device, inode and name: equal for two paths that lead to the same file, whether it exists or not."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino, ""
    folder, name = os.path.split(os.path.realpath(path))
    with suppress(OSError):
        found = os.stat(folder)
        return found.st_dev, found.st_ino, name
    return 0, 0, path


def check_room(option: str, path: str | None, nbytes: int) -> None:
    """Raise UsageError if a disk has too little room for a file, or in a folder, of about `nbytes`."""
    if path is None or files.is_stream(path):
        return
    folder = path if os.path.isdir(path) else os.path.dirname(os.path.realpath(path))
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise UsageError(f"{option} {path} needs {nbytes / 1e6:,.1f} MB; the disk has {free / 1e6:,.1f} MB left")


REPORT = 1  # the version of reports for machines: it changes when a field gets another name or meaning


def write_json(path: str, document: dict[str, Any]) -> None:
    """Write a report for machines; "-" is standard output."""
    written = as_json({"format": REPORT, **document})
    if path == "-":
        sys.stdout.write(written.decode())
    else:
        write_output(path, written)
        say_written(report=path)


def as_json(document: dict[str, Any]) -> bytes:
    return f"{json.dumps(document, indent=1)}\n".encode()


def finite(value: Any) -> Any:
    """A value for JSON, which has no word for a number that is infinite or NaN: None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_output(path: str, content: bytes) -> None:
    """Write an output under a name that the user gives. If that fails, a line says so, the work goes on, and the
    program ends with a nonzero status."""
    try:
        with files.writing(path) as file:
            file.write(content)
    except OSError as error:
        output.lost(path, error)


def say_written(**paths: str | None) -> None:
    """Print a line for each requested file that now exists. paths: by what the file is. Streams need no line."""
    for what, path in paths.items():
        if path is not None and not files.is_stream(path) and not output.is_lost(path):
            print(f"{what.replace('_', ' ')} written to {path}")


def write_inside(folder: str, name: str, content: bytes) -> None:
    """Likewise, but inside a folder, under a name that minidist chooses: a link of that name is not followed."""
    path = os.path.join(folder, name)
    try:
        files.write_whole(path, content)
    except OSError as error:
        output.lost(path, error)
