"""A notebook's cell on the ranks: what `%%mpirun` lets every rank run (see `minidist.classroom.notebook`)."""

import ast
import linecache
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm

Source = tuple[str, str]  # (name, as tracebacks show it; code, on the lines that it has in its cell)


def run_cell(comm: Comm, sources: list[Source], values: dict[str, Any], wanted: list[str]) -> list[Any]:
    """Execute definitions and, last, the cell itself, with `comm`, `np` and `values`; the wanted variables' values.

    As in a notebook, the value of an expression on the cell's last line is shown.
    """
    namespace = {"__name__": "__main__", "np": np, "comm": comm, **values}
    for name, code in sources:
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)  # for tracebacks
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), namespace)
        if last is not None:
            exec(compile(ast.Interactive([last]), name, "single"), namespace)
    missing = [name for name in wanted if name not in namespace]
    if missing:
        raise NameError(f"the cell is to return {', '.join(missing)}, but gave no value to that name")
    return [namespace[name] for name in wanted]
