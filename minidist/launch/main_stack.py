"""Where the main thread is, seen from another thread."""

import faulthandler
import re
import tempfile
import threading
import traceback


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
    frames = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', own, re.MULTILINE)
    return [traceback.FrameSummary(filename, int(line), name) for filename, line, name in reversed(frames)]
