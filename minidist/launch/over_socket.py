"""Values over a socket: JSON and raw arrays, so that the reader runs no code of the writer.

A frame has two lengths, JSON text (the value's nesting, see encode.py, and a description of its arrays), and the bytes
of the arrays, one after the other.
"""

import json
import math
import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from minidist.launch import encode

LENGTHS = struct.Struct("!QQ")  # bytes of the JSON text, bytes of the arrays
SMALL = 1 << 14  # bytes; a frame up to this size is copied into one piece
LIMIT = 1 << 30  # bytes of a frame: the most that another program can make us keep


def to_frame(value: Any) -> list[bytes | memoryview]:
    """A value as bytes to write, piece by piece; a small one in one piece, which wakes the reader once. Raises
    TypeError for a value that encode.py does not know."""
    arrays: list[np.ndarray] = []
    tree = encode.pack(value, arrays)
    plain = [np.ascontiguousarray(array) for array in arrays]
    text = json.dumps([tree, [(array.dtype.str, array.shape) for array in arrays]]).encode()
    head = LENGTHS.pack(len(text), sum(array.nbytes for array in plain)) + text
    pieces: list[bytes | memoryview] = [
        head,
        *(array.reshape(-1).view(np.uint8).data for array in plain if array.nbytes),
    ]
    return [b"".join(pieces)] if len(pieces) > 1 and sum(map(len, pieces)) <= SMALL else pieces


def send(line: socket.socket, value: Any) -> None:
    """Write a value to a blocking socket."""
    write(line, to_frame(value))


def write(line: socket.socket, frame: list[bytes | memoryview]) -> None:
    """Write a frame to a blocking socket."""
    for piece in frame:
        line.sendall(piece)


def receive(line: socket.socket) -> Any:
    """Read a value from a blocking socket. Raises EOFError if the other end has closed it."""
    text, body = LENGTHS.unpack(_read(line, LENGTHS.size))
    return _value(_read(line, text + body), text)


def _read(line: socket.socket, nbytes: int) -> bytearray:
    data = bytearray(nbytes)
    view, got = memoryview(data), 0
    while got < nbytes:
        new = line.recv_into(view[got:])
        if not new:
            raise EOFError("the other end is gone")
        got += new
    return data


class Reader:
    """Reads values from a stream of bytes that arrives in pieces of any size."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The values that these bytes complete. Bytes that `to_frame` did not write may raise any exception."""
        self.data += data
        while len(self.data) >= LENGTHS.size:
            text, body = LENGTHS.unpack_from(self.data)
            if text + body > LIMIT:
                raise ValueError(f"a frame of {text + body:,} bytes; at most {LIMIT:,} are read")
            end = LENGTHS.size + text + body
            if len(self.data) < end:
                return
            frame = self.data[LENGTHS.size : end]
            del self.data[:end]
            yield _value(frame, text)


def _value(frame: bytearray, text: int) -> Any:
    tree, described = json.loads(frame[:text].decode())
    arrays, start = [], text
    for name, shape in described:
        dtype = np.dtype(name)
        if dtype.hasobject or any(side < 0 for side in shape):
            raise ValueError(f"no array: {name}, {shape}")
        size = math.prod(shape)
        arrays.append(np.frombuffer(frame, dtype, size, start).reshape(shape))
        start += size * dtype.itemsize
    return encode.unpack(tree, arrays.__getitem__)
