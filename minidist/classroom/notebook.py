"""Ranks from a notebook: `%load_ext minidist`, and a cell that begins with `%%mpirun -n 4` runs on four ranks.

    %%mpirun -n 4 --out total
    total = all_reduce(comm, np.arange(3.0) + comm.rank)

Every rank is a process of its own with `comm` and `np`. It gets from the notebook what the cell names: functions and
classes that earlier cells define (their text is run again on the rank), imported names, and values that can pass
between processes, as copies. With `--out total` the notebook then has `total`, a list of each rank's value. Nothing
else comes back, and the ranks are gone when the cell ends.

What the ranks print is shown rank by rank. A rank that fails, a deadlock, the timeout and an interrupt end all ranks.
Where there is no MPI, the ranks' messages pass through the notebook's own process (see router.py).
"""

import argparse
import ast
import builtins
import importlib.util
import inspect
from types import CodeType, ModuleType
from typing import Any

from minidist import Finished, UsageError
from minidist.classroom.nursery import Nursery
from minidist.classroom.router import route
from minidist.cli.options import Parser, at_least, within
from minidist.mpi import encode
from minidist.mpi.cell import Source
from minidist.mpi.exchange import Rules
from minidist.mpi.launch import Job, JobFailed, find_mpiexec, launch


class CellFailed(JobFailed):
    """A cell that did not end well on every rank. The notebook shows the job's report and no frame of its own."""

    def _render_traceback_(self) -> list[str]:  # IPython asks for it
        return [str(self)]


def load(shell: Any) -> None:
    """Make `%%mpirun` known to an IPython shell."""
    shell.register_magic_function(lambda line, cell: mpirun(shell, line, cell), "cell", "mpirun")


def mpirun(shell: Any, line: str, cell: str) -> None:
    """Run `cell` on ranks, as the options on `line` say."""
    try:
        options = parser().parse_args(line.split())
        names = [name for argument in options.out for name in argument.split(",")]
        code = "\n" + cell  # the line of %%mpirun counts, as it does on the screen
        sources, values, left_out = brought_along(compiled(code), shell.user_ns)
        sources.append((f"In[{len(shell.user_ns['In']) - 1}]", code))
        job = on_ranks("minidist.mpi.cell:run_cell", options.n, sources, values, names, timeout=options.timeout)
    except Finished as finished:
        print(finished)
        return
    except UsageError as error:
        raise CellFailed(f"%%mpirun: {error}") from None
    except KeyboardInterrupt:
        raise CellFailed("Interrupted: every rank has been ended.") from None
    if job.output:
        print(job.output)
    if job.status != "ok":
        hints = [
            f"\n{name} is a {kind}, which cannot pass from the notebook to the ranks: make it in the cell."
            for name, kind in left_out.items()
            if f"NameError: name '{name}' is not defined" in job.report
        ]
        raise CellFailed(job.report + "".join(hints))
    for name, returned in zip(names, zip(*job.values, strict=True), strict=True):
        shell.user_ns[name] = list(returned)


def on_ranks(target: str, n: int, *arguments: Any, timeout: float) -> Job:
    """A job on n ranks of MPI; where there is none, on processes without it."""
    if has_mpi():
        return launch(target, n, *arguments, timeout=timeout)
    with Nursery() as nursery:
        return route(nursery, target, [arguments] * n, Rules("eager"), timeout, own_folders=False)


def has_mpi() -> bool:
    try:
        return bool(find_mpiexec()) and importlib.util.find_spec("mpi4py") is not None
    except UsageError:
        return False


def parser() -> Parser:
    made = Parser("notebook", __doc__ or "")
    made.prog, made.formatter_class = "%%mpirun", argparse.RawDescriptionHelpFormatter
    made.add_argument("-n", type=at_least(1), default=4, help="ranks (default: 4)")
    made.add_argument("--out", action="append", default=[], metavar="NAME", help="bring this variable back, as a list")
    made.add_argument("--timeout", type=within(0.1, 86400), default=60.0, help="seconds (default: 60)")
    return made


def compiled(code: str) -> CodeType:
    try:
        return compile(code, "the cell", "exec")
    except SyntaxError as error:
        raise CellFailed(f"line {error.lineno}: {error.msg}\n    {(error.text or '').strip()}") from None


def brought_along(code: CodeType, notebook: dict[str, Any]) -> tuple[list[Source], dict[str, Any], dict[str, str]]:
    """What the code needs of the notebook's variables: definitions and imports as text, values, and what cannot go.

    Definitions bring along what they need in turn.
    """
    cells: list[str] = notebook.get("In", [])
    imports: list[str] = []
    found: dict[tuple[int, int], str] = {}  # (cell, line) -> a definition's text, on the lines that it has there
    values: dict[str, Any] = {}
    left_out: dict[str, str] = {}  # name -> its type
    needed, seen = names_in(code), {"comm", "np", *vars(builtins)}
    while needed:
        name = needed.pop()
        if name in seen or name not in notebook:
            continue
        seen.add(name)
        value = notebook[name]
        definition = find_definition(name, cells) if getattr(value, "__module__", None) == "__main__" else None
        if isinstance(value, ModuleType):
            imports.append(f"import {value.__name__} as {name}")
        elif definition:
            place, text = definition
            found[place] = text
            needed |= names_in(compile(text, "a definition", "exec"))
        elif (inspect.isroutine(value) or inspect.isclass(value)) and value.__module__ not in (None, "__main__"):
            imports.append(f"from {value.__module__} import {value.__qualname__} as {name}")
        else:
            try:
                encode.check(value)
                values[name] = value
            except TypeError:
                left_out[name] = type(value).__name__
    definitions = [(f"In[{cell}]", text) for (cell, _), text in sorted(found.items())]
    return [("imports", "\n".join(sorted(imports))), *definitions], values, left_out


def names_in(code: CodeType) -> set[str]:
    """The global names that code reads or writes, those of the functions inside it included."""
    inner = [names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def find_definition(name: str, cells: list[str]) -> tuple[tuple[int, int], str] | None:
    """((cell, line), text) of the last function or class `name` at the top level of a cell."""
    for number in reversed(range(len(cells))):
        try:
            body = ast.parse(cells[number]).body
        except SyntaxError:
            continue
        for node in reversed(body):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                lines = cells[number].splitlines()[first - 1 : node.end_lineno]
                return (number, first), "\n" * (first - 1) + "\n".join(lines) + "\n"
    return None
