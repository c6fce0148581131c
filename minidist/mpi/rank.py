"""What a rank does in any job, however the ranks were started: it checks its input, works, and says how it failed."""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minidist import EndJob, Finished, Stopped, UsageError
from minidist.memory import kernel
from minidist.memory.pool import OutOfMemory
from minidist.mpi import ROOMS, environment, interface, output
from minidist.mpi.comm import Comm

# At the top of a traceback, frames of these rooms and of the import system say nothing about what went wrong.
PACKAGE = Path(__file__).parents[1]
MACHINERY = (*(str(PACKAGE / room) for room in ROOMS), os.path.dirname(importlib.__file__), "<frozen importlib")

AUDIT = "MINIDIST_AUDIT"  # names a folder into which each rank writes what it has sent, at its end: claims/audit.py


def describe(error: BaseException, rank: int) -> tuple[str, int]:
    """What is printed about the error that ends a job, and the job's exit status."""
    if isinstance(error, EndJob):
        return "", error.status
    if isinstance(error, OutOfMemory):
        return f"minidist: error: rank {rank} is {error}\n", 1
    if isinstance(error, MemoryError):
        return f"minidist: error: rank {rank}: {output.no_memory(error)}\n", 2
    if isinstance(error, Stopped | UsageError):
        return f"minidist: error: {error}\n", error.status if isinstance(error, Stopped) else 2
    return f"rank {rank} failed:\n{explain(error)}\n", 1


def run_rank(comm: Comm, main: Callable[[Comm, Any], int | None], prepare: Callable[[Comm], Any]) -> int:
    """Check the input on every rank, and do the work; returns this rank's exit status."""
    prepared, refusal, farewell = None, None, None
    try:
        check_environment()
        prepared = prepare(comm)
    except UsageError as error:
        refusal = str(error)
    except Finished as finished:
        farewell = str(finished)

    refusals, farewells = zip(*comm.all_gather_object((refusal, farewell)), strict=True)
    if any(text is not None for text in refusals):
        if comm.rank == 0:
            rank, text = next((rank, text) for rank, text in enumerate(refusals) if text is not None)
            place = "" if None not in refusals else f"on rank {rank}: "
            print(f"minidist: error: {place}{output.in_a_line(text)}", file=sys.stderr)
        return 2
    if any(text is not None for text in farewells):
        if comm.rank == 0:
            print(next(text for text in farewells if text is not None))
        return 0

    with interface.watched(comm):
        status = main(comm, prepared) or 0
    comm.ledger.check_requests()
    if folder := os.environ.get(AUDIT):
        path = Path(folder, f"{comm.rank}.json")
        try:
            path.write_text(json.dumps([*comm.ledger.ever().items()]), encoding="utf-8")
        except OSError as error:
            output.lost(str(path), error)
    return status


def check_environment() -> None:
    """Raise UsageError if an audit names a folder that does not exist, or counts what a process moves, and ranks share
    one."""
    for name in (AUDIT, kernel.AUDIT):
        folder = os.environ.get(name)
        if folder and not os.path.isdir(folder):
            raise UsageError(f"{name} names {folder}, which is no folder: make it, or unset {name}")
    if os.environ.get(kernel.AUDIT) and environment.ranks_here > 1:
        raise UsageError(f"{kernel.AUDIT} counts what a process moves: leave out --ranks, or unset it")


def explain(error: BaseException) -> str:
    """The traceback of `error` without MACHINERY's frames at its top; for sys.exit, a sentence with the calling line.
    For an error that the user can fix, its message is enough."""
    if isinstance(error, Stopped):
        return str(error)
    if isinstance(error, SystemExit):
        caller = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"sys.exit({'' if error.code is None else repr(error.code)}) was called at"
            f" {Path(caller.filename).name}:{caller.lineno}. A rank that leaves on its own would leave the others"
            " waiting for its messages, so the whole job ends here. Return instead."
        )
    below = error.__traceback__
    while below and below.tb_frame.f_code.co_filename.startswith(MACHINERY):
        below = below.tb_next
    return "".join(traceback.format_exception(type(error), error, below)).rstrip()
