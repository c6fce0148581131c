"""Files and folders that are there whole or not at all, also where the power fails in between.

Whatever is new is written under another name, its content is synced to the disk, it is renamed, and the folder that has
the name is synced as well (Pillai et al., "All file systems are not created equal", OSDI 2014: without either sync, a
crash may leave the new name without the new content).
"""

import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from safetensors import safe_open

from minidist.claims.files import draft_of, open_regular
from minidist.nn.tensor import Array

DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}  # safetensors' names
BLOCK = 1 << 20  # bytes that are read at once to add up a checksum


class Tensor(NamedTuple):
    """A tensor that is to be written. It is made when its turn has come."""

    name: str
    shape: tuple[int, ...]
    make: Callable[[], Array]


class Written(NamedTuple):
    """What became of a file: its length, and its checksum (BLAKE2b, 128 bits, hexadecimal)."""

    bytes: int
    blake2b: str


def write_tensors(path: str, tensors: Iterable[Tensor], dtype: str, metadata: dict[str, str]) -> Written:
    """Write a new safetensors file, one tensor after the other, so that only one is held; return when the disk has it.

    The format (https://github.com/huggingface/safetensors): the header's length, 8 bytes; the header, JSON; the data.
    The library's own writer would want all tensors at once.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    tensors, offset = list(tensors), 0
    for name, shape, _ in tensors:
        end = offset + math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    checksum = blake2b(struct.pack("<Q", len(text)) + text, digest_size=16)
    with synced(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            data = np.ascontiguousarray(tensor.make(), DTYPES[dtype])
            file.write(data.data)
            checksum.update(data.data)
            del data  # before the next one is made
    return Written(8 + len(text) + offset, checksum.hexdigest())


def write_text(path: str, text: str) -> None:
    """A new text file; returns when the disk has it."""
    with synced(path) as file:
        file.write(text.encode())


@contextmanager
def synced(path: str) -> Iterator[BinaryIO]:
    """A new file, which the disk has in the end. Raises OSError, with the file's name."""
    try:
        with open(path, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = path
        raise


def sync_folder(path: str) -> None:
    """Return when the disk has the names in a folder."""
    folder = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove(path: str) -> None:
    """Take a file or a folder away, if it is there."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """The name under which to write a file that then takes `path`'s place. After a failure all is as it was. Raises
    OSError, with the file's name."""
    draft = draft_of(path)
    try:
        yield draft
        os.replace(draft, path)
        sync_folder(os.path.dirname(path))
    except OSError as error:
        error.filename = path
        raise
    finally:
        remove(draft)


def checksum_of(path: str) -> str:
    """Of a file's content, read block by block. Raises OSError."""
    checksum = blake2b(digest_size=16)
    with open_regular(path) as file:
        while block := file.read(BLOCK):
            checksum.update(block)
    return checksum.hexdigest()


def opened(path: str) -> Any:
    """A safetensors file, whose tensors are read when they are asked for. Raises OSError, SafetensorError."""
    open_regular(path).close()
    return safe_open(path, framework="numpy")


def elements(file: Any, name: str, start: int, stop: int) -> Array:
    """Elements `start` to `stop` - 1, in the order of memory, of a tensor of an open file: the rows that have them are
    read, and nothing else of the file."""
    tensor = file.get_slice(name)
    row = math.prod(tensor.get_shape()[1:])
    first = start // row
    rows: Array = tensor[first : -(-stop // row)]
    return rows.reshape(-1)[start - first * row : stop - first * row]
