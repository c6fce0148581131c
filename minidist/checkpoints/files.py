"""Tensors in files: written one by one, read by elements."""

import json
import math
import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from safetensors import safe_open

from minidist.nn.tensor import Array
from minidist.system.files import open_regular

DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}  # safetensors' names
BLOCK = 1 << 20  # bytes that are read at once to add up a checksum


class TensorToWrite(NamedTuple):
    """A tensor to be written. It is made only when its turn comes."""

    name: str
    shape: tuple[int, ...]
    make: Callable[[], Array]

    def data(self, dtype: str) -> Array:
        """The tensor as it is written."""
        return np.ascontiguousarray(self.make(), DTYPES[dtype])


class WrittenFile(NamedTuple):
    """A written file's length and checksum (BLAKE2b, 128 bits, hexadecimal)."""

    bytes: int
    blake2b: str


def write_tensors(
    file: BinaryIO, tensors: Iterable[TensorToWrite], dtype: str, metadata: dict[str, str]
) -> WrittenFile:
    """Write a safetensors file, one tensor after the other, so that only one is held.

    The format (https://github.com/huggingface/safetensors): the header's length, 8 bytes; the header, JSON; the data.
    The library's own writer needs all tensors at once.
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
    file.write(struct.pack("<Q", len(text)) + text)
    for tensor in tensors:
        data = tensor.data(dtype)
        file.write(data.data)
        checksum.update(data.data)
        del data  # before the next one is made
    return WrittenFile(8 + len(text) + offset, checksum.hexdigest())


def checksums(tensors: Iterable[TensorToWrite], dtype: str, metadata: dict[str, str]) -> dict[str, str]:
    """Checksums of each tensor and each piece of metadata, by name. They go into the header, which is written first,
    because the file may be a pipe: so each tensor is made twice."""
    of_metadata = {name: checksum(text.encode()) for name, text in metadata.items()}
    return of_metadata | {tensor.name: checksum(tensor.data(dtype).data) for tensor in tensors}


def checksum(data: bytes | memoryview) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def checksum_of(path: str) -> str:
    """The checksum of a file's content, read block by block. Raises OSError."""
    checksum = blake2b(digest_size=16)
    with open_regular(path) as file:
        while block := file.read(BLOCK):
            checksum.update(block)
    return checksum.hexdigest()


def open_safetensors(path: str) -> Any:
    """Open a safetensors file, whose tensors are read on request. Raises OSError, SafetensorError."""
    open_regular(path).close()
    return safe_open(path, framework="numpy")


def elements(file: Any, name: str, start: int, stop: int) -> Array:
    """Elements `start` to `stop` - 1, in the order of memory, of a tensor of an open file: only the rows that have
    them are read."""
    tensor = file.get_slice(name)
    row = math.prod(tensor.get_shape()[1:])
    first = start // row
    rows: Array = tensor[first : -(-stop // row)]
    return rows.reshape(-1)[start - first * row : stop - first * row]
