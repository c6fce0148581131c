"""The record that a worker of `minidist.mapreduce` is working on: the master reads it if the worker stops answering.

Before the user's function is called, the paper's library stores the record's number in a global variable, and a handler
of signals sends it to the master in a "last gasp" packet (section 4.6). A process in an endless loop, or stopped, sends
nothing. So here the variable is in a file that is mapped into memory, and others on the same machine can read it.
"""

import mmap
import os
import struct
from pathlib import Path

from minidist.mr.plan import Record, TaskName
from minidist.system import unix
from minidist.system.files import on_disk

NUMBERS = struct.Struct("<qqqq")  # kind, number, offset, bytes of the text
SIZE, HEAD = 4096, NUMBERS.size  # bytes of the file, and of the numbers at its beginning
KINDS = {"": 0, "map": 1, "reduce": 2}  # "": not in the user's function
WHOLE = -1  # instead of an offset: the text is the record


class LastGasp:
    """Notes the task and the record that a worker is working on."""

    def __init__(self, path: Path) -> None:
        with on_disk("write", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | unix.NO_LINK, 0o600)
            with open(descriptor, "r+b") as file:
                file.write(bytes(SIZE))  # clears the record of a worker that was killed
                file.flush()  # if the disk has no room, this says so; a write to the memory would kill the process
                self.memory = mmap.mmap(descriptor, SIZE)
        self.text, self.length = "", 0

    def enter(self, task: TaskName, record: Record) -> None:
        """Note the record that the user's function is about to see."""
        text, offset = record if isinstance(record, tuple) else (record, WHOLE)
        if text != self.text:
            data = text.encode(errors="surrogatepass")[: SIZE - HEAD]
            self.memory[HEAD : HEAD + len(data)] = data
            self.text, self.length = text, len(data)
        NUMBERS.pack_into(self.memory, 0, KINDS[task[0]], task[1], offset, self.length)

    def leave(self) -> None:
        """Note that the user's function has returned."""
        self.memory[:8] = bytes(8)  # the kind


def read(path: Path) -> tuple[TaskName, Record] | None:
    """The task and record of the user's function, if a worker is in it. A record that does not fit is cut off."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    kind, number, offset, length = NUMBERS.unpack_from(data)
    text = data[HEAD : HEAD + length].decode(errors="replace")
    return ((list(KINDS)[kind], number), text if offset == WHOLE else (text, offset)) if kind else None
