"""Files that a run leaves: a report for machines, and whatever else must be there whole or not at all."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from minidist import UsageError


def check_writable(option: str, path: str | None) -> None:
    """Raise UsageError unless a file can be made at `path`: better now than after the training."""
    if path is None:
        return
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {folder}")
    # What is there is replaced by a new file: not a folder, and not /dev/null.
    if (Path(path).exists() and not Path(path).is_file()) or not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path}: cannot write there")


def write_json(path: str, document: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Write a report for machines; "-" is standard output."""
    text = json.dumps(document, indent=1) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        write_whole(path, text.encode())


def write_whole(path: str, content: bytes) -> None:
    """Write a file so that a reader sees all of it, or the file that was there before: under another name, renamed."""
    temporary = f"{path}.tmp"
    Path(temporary).write_bytes(content)
    os.replace(temporary, path)
