"""A notebook's cell on the ranks: what `%%mpirun` lets every rank run (see `minidist.classroom.notebook.cell`)."""

import ast
import linecache
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from minidist.launch import encode
from minidist.mpi import ROOMS
from minidist.mpi.comm import Comm

Source = tuple[str, str]  # (name, as tracebacks show it; code, on the lines that it has in its cell)

PACKAGE = Path(__file__).parents[1]
MACHINERY = tuple(str(PACKAGE / room) for room in (*ROOMS, "classroom"))  # their frames say nothing about the cell


def run_cell(comm: Comm, sources: list[Source], values: dict[str, Any], wanted: list[str]) -> list[Any]:
    """Execute definitions and, last, the cell itself, with `comm`, `np` and `values`; return the wanted variables.

    As in a notebook, the value of an expression on the cell's last line is shown.
    """
    os.environ["MPLBACKEND"] = "module://minidist.launch.no_screen"  # the notebook's own backend would print names
    namespace = {"__name__": "__main__", "np": np, "comm": comm, **values}
    try:
        for name, code in sources:
            linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)  # for tracebacks
            tree = ast.parse(code, name)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, name, "exec"), namespace)
            if last is not None:
                exec(compile(ast.Interactive([last]), name, "single"), namespace)
    except BaseException as error:
        forget_machinery(error)
        raise
    if no_screen := sys.modules.get("minidist.launch.no_screen"):  # something was drawn
        no_screen.mention_unseen()
    for name in wanted:
        check_wanted(namespace, name)
    return [namespace[name] for name in wanted]


def check_wanted(namespace: dict[str, Any], name: str) -> None:
    """Raise an error that says why a variable cannot be brought to the notebook, if it cannot."""
    if name not in namespace:
        raise NameError(f"the cell is to return {name}, but gave no value to that name")
    try:
        encode.check(namespace[name])
    except TypeError as error:
        raise TypeError(f"--out {name}: {error}") from None
    if holds_named_tuple(namespace[name]):
        raise TypeError(f"--out {name}: a named tuple would come back as a plain one; return its _asdict()")


def holds_named_tuple(value: Any) -> bool:
    """Whether nested lists, tuples and dictionaries hold a named tuple: its names do not pass between processes."""
    if isinstance(value, dict):
        return any(holds_named_tuple(item) for pair in value.items() for item in pair)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return True
    return isinstance(value, list | tuple) and any(holds_named_tuple(item) for item in value)


def forget_machinery(error: BaseException | None) -> None:
    """Remove the machinery's frames from the tracebacks of an error and of the errors that led to it."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.with_traceback(without_machinery(error.__traceback__))
        error = error.__cause__ or error.__context__


def without_machinery(trace: TracebackType | None) -> TracebackType | None:
    if trace is None:
        return None
    below = without_machinery(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(MACHINERY):
        return below
    return TracebackType(below, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
