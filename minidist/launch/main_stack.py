"""Where the main thread is, seen by another one."""

import faulthandler
import re
import tempfile
import threading
import traceback


def main_stack() -> list[traceback.FrameSummary]:
    """The main thread's stack, the outermost frame first.

    faulthandler reads it without making an object of a frame. Who holds one, be it for a millisecond, keeps the arrays
    of its local variables alive when the function has returned: a rank that is looked at would hold more memory.
    """
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        threads = file.read().decode(errors="replace")
    _, _, stack = threads.partition(f"Thread 0x{threading.main_thread().ident:016x} ")
    own, _, _ = stack.partition("\n\n")
    frames = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', own, re.MULTILINE)
    return [traceback.FrameSummary(filename, int(line), name) for filename, line, name in reversed(frames)]
