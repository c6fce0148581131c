"""Where the main thread is, seen from another thread or from another process."""

import faulthandler
import os
import re
import tempfile
import threading
import traceback
from collections.abc import Sequence


def main_stack() -> list[traceback.FrameSummary]:
    """The main thread's stack, the outermost frame first.

    faulthandler reads it without making frame objects. A frame object, even for a millisecond, keeps the arrays of its
    local variables alive after the function has returned: looking at a rank would make it hold more memory.
    """
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        threads = file.read().decode(errors="replace")
    _, _, stack = threads.partition(f"Thread 0x{threading.main_thread().ident:016x} ")
    own, _, _ = stack.partition("\n\n")
    return frames_in(own)


def frames_in(written: str) -> list[traceback.FrameSummary]:
    """The frames of a stack that faulthandler has written, the outermost first, without their source lines.

    Reading these would make a rank hold more memory, and a student's program may name any file in a frame.
    """
    frames = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', written, re.MULTILINE)
    return [traceback.FrameSummary(file, int(line), name, lookup_line=False) for file, line, name in reversed(frames)]


def format_stack(frames: Sequence[tuple[str, int, str]]) -> str:
    """Frames (file, line number, function) as text like a traceback's, with source lines if the files exist."""
    lines = [None if os.path.isfile(filename) else "" for filename, _, _ in frames]  # None: yet to be read
    named = [traceback.FrameSummary(*frame, line=line) for frame, line in zip(frames, lines, strict=True)]
    return "".join(traceback.format_list(named))


def place_of(frames: Sequence[traceback.FrameSummary]) -> str:
    """Where the innermost frame is, and which line of the outermost frame's file called it: "ring.py:74 in sum_around,
    called from exercise.py:31"."""
    here, outermost = frames[-1], frames[0].filename
    where = f"{os.path.basename(here.filename)}:{here.lineno} in {here.name}"
    in_target = [frame for frame in frames if frame.filename == outermost]
    if here in in_target:
        return where
    return f"{where}, called from {os.path.basename(outermost)}:{in_target[-1].lineno}"
