"""Ranks of one process under a debugger: pdb, or debugpy, which is VS Code's.

    python -m pdb -m minidist.zero3 --ranks 4

Debuggers know threads, and no greenlets. All ranks are the same thread for them: a breakpoint stops in whichever rank
comes to it, and a step over a message goes on in the same rank when others have had their turns. So the user must see
which rank it is: in pdb's prompt, and as the name of the thread.
"""

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

MODULES = ("bdb", "pydevd")  # of pdb and its relatives, and of debugpy


def debugged() -> bool:
    """Whether a debugger may be at work in this process."""
    return sys.gettrace() is not None or any(name in sys.modules for name in MODULES)


def announcer() -> Callable[[int], object] | None:
    """What to call with a rank before its turn, if there is a debugger; a module of one may be loaded without it."""
    pdb = prompter()
    return partial(show_rank, pdb) if pdb or sys.gettrace() or "pydevd" in sys.modules else None


def prompter() -> Any:
    """The Pdb that runs this program, if one does: it stands below on the stack."""
    frame = sys._getframe()
    while frame.f_back:
        frame = frame.f_back
        if frame.f_code.co_name == "run" and frame.f_globals.get("__name__") == "bdb":
            return frame.f_locals["self"]
    return None


def show_rank(pdb: Any, rank: int) -> None:
    """Show the debugger's user which rank runs."""
    if pdb:
        pdb.prompt = f"(Pdb, rank {rank}) "
    threading.current_thread().name = f"rank {rank}"


def stop_in_ranks(running: Callable[[], int]) -> None:
    """Let breakpoint() name the rank, too, unless the user has chosen another debugger for it."""
    if sys.breakpointhook is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT"):
        return

    def stop() -> None:
        import pdb  # loads a hundred modules

        made = pdb.Pdb()
        show_rank(made, running())
        made.set_trace(sys._getframe(1))

    sys.breakpointhook = stop
