"""The lines between the process that grades and its ranks: a socket to each, and pipes for what each prints.

Nothing here waits for a rank, in a read or in a write.
"""

import os
import selectors
import socket
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

from minidist.classroom.grading import sense
from minidist.launch import over_socket

OUTPUTS = ("stdout", "stderr", "stack")
OUTPUT_LIMIT = 1_000_000  # bytes that a rank may print


class Lines(ABC):
    """The lines of n ranks. What comes over them goes to `hear`, `lose` and `fail`."""

    @abstractmethod
    def hear(self, rank: int, value: Any) -> None:
        """Handle a value that a rank has sent. Any exception means that it makes no sense."""

    @abstractmethod
    def lose(self, rank: int) -> None:
        """A rank has closed its line."""

    @abstractmethod
    def fail(self, rank: int, error_type: str, text: str) -> None:
        """A rank has failed, or does something that no job does."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.selector = selectors.DefaultSelector()
        self.lines: list[socket.socket] = []
        self.readers = [over_socket.Reader() for _ in range(n)]
        self.unsent: list[deque[memoryview]] = [deque() for _ in range(n)]
        self.pipes: dict[tuple[int, str], int] = {}
        self.printed: dict[tuple[int, str], bytearray] = {}

    def connect(self, rank: int) -> socket.socket:
        """Open a rank's line; return the rank's end of it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.lines.append(ours)
        self.selector.register(ours, selectors.EVENT_READ, partial(self.turn, rank))
        return theirs

    def open_output(self, rank: int, name: str) -> int:
        """Open a pipe that is read here; return the rank's end of it."""
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        self.pipes[rank, name], self.printed[rank, name] = ours, bytearray()
        self.selector.register(ours, selectors.EVENT_READ, partial(self.drain, rank, name))
        return theirs

    def close(self) -> None:
        self.selector.close()
        for line in self.lines:
            line.close()
        for pipe in self.pipes.values():
            os.close(pipe)

    def turn(self, rank: int, mask: int) -> None:
        """A rank's line can be written to, or read."""
        if mask & selectors.EVENT_WRITE:
            self.write(rank)
        if mask & selectors.EVENT_READ:
            self.read(rank)

    def drain(self, rank: int, name: str, mask: int = 0) -> None:
        """Read what a rank has printed, as far as it has arrived."""
        pipe, printed = self.pipes[rank, name], self.printed[rank, name]
        with suppress(BlockingIOError):
            while (data := os.read(pipe, 1 << 16)) and len(printed) <= OUTPUT_LIMIT:
                printed += data
            if mask:  # the pipe is closed, or has brought enough
                self.selector.unregister(pipe)
        if mask and len(printed) > OUTPUT_LIMIT:
            self.fail(rank, "Output", f"it printed more than {OUTPUT_LIMIT:,} bytes: does it print for ever?")

    def say(self, rank: int, value: Any) -> None:
        """Send a value to a rank, without waiting."""
        self.unsent[rank].extend(memoryview(piece) for piece in over_socket.to_frame(value))
        self.write(rank)

    def write(self, rank: int) -> None:
        """Write as much to a rank as there is room for now."""
        line, unsent = self.lines[rank], self.unsent[rank]
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):  # reading will tell that it is gone
            while unsent:
                rest = unsent[0][line.send(unsent[0]) :]
                if rest:
                    unsent[0] = rest
                else:
                    unsent.popleft()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
        key = self.selector.get_key(line)
        if key.events != events:
            self.selector.modify(line, events, key.data)

    def read(self, rank: int) -> None:
        """Read what a rank has sent, as far as it has arrived."""
        try:
            data = self.lines[rank].recv(1 << 18)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.selector.unregister(self.lines[rank])
            self.lose(rank)
            return
        try:
            for value in self.readers[rank].feed(data):
                self.hear(rank, value)
        except Exception as error:  # a student's program may send anything
            what = str(error) if isinstance(error, sense.Nonsense) else repr(error)
            self.fail(rank, "Nonsense", f"its process sent what no Comm sends: {what}")

    def text(self, rank: int, name: str) -> str:
        """What a rank has printed."""
        return self.printed[rank, name][:OUTPUT_LIMIT].decode(errors="replace") if (rank, name) in self.printed else ""
