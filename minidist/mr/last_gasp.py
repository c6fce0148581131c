"""Where a worker of `minidist.mapreduce` is, for the master to see when the worker does not answer any more.

Before the user's function is called, the paper's library stores the record's number in a global variable, and a handler
of signals sends it to the master in a "last gasp" packet (section 4.6). A process in an endless loop, or stopped, sends
nothing: here the variable lies in a file that is mapped into memory, and others on the same machine can read it.
"""

import mmap
import os
from pathlib import Path

from minidist.mr.plan import Record, TaskName

SIZE, HEAD = 4096, 32  # bytes of the file, and of the numbers at its beginning
KINDS = ("", "map", "reduce")  # "": not in the user's function
WHOLE = -1  # instead of an offset: the text is the record


class LastGasp:
    """Of the task and the record that a worker is at."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.ftruncate(descriptor, SIZE)
        self.memory = mmap.mmap(descriptor, SIZE)
        os.close(descriptor)
        self.numbers = memoryview(self.memory)[:HEAD].cast("q")  # kind, number, offset, bytes of the text
        self.text: str | None = None
        self.leave()  # where a worker was that has been killed

    def enter(self, task: TaskName, record: Record) -> None:
        """The user's function is about to see a record."""
        text, offset = record if isinstance(record, tuple) else (record, WHOLE)
        if text != self.text:
            data = text.encode(errors="surrogatepass")
            self.memory[HEAD : HEAD + len(data[: SIZE - HEAD])] = data[: SIZE - HEAD]
            self.text, self.numbers[3] = text, len(data)
        self.numbers[2] = offset
        self.numbers[1] = task[1]
        self.numbers[0] = KINDS.index(task[0])

    def leave(self) -> None:
        """It has returned."""
        self.numbers[0] = 0


def read(path: Path) -> tuple[TaskName, Record] | None:
    """What the user's function is at, if a worker is in it. Of a record that does not fit, its beginning."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    kind, number, offset, length = memoryview(data)[:HEAD].cast("q")
    text = data[HEAD : HEAD + length].decode(errors="replace")
    return ((KINDS[kind], number), text if offset == WHOLE else (text, offset)) if kind else None
