"""What a cell brings along to its ranks: the variables of the notebook that its code names, as text or as values."""

import ast
import builtins
import inspect
import re
import sys
from types import CodeType, FunctionType, ModuleType
from typing import Any

from minidist.classroom.grading.chapter import names_in
from minidist.launch import encode
from minidist.launch.notebook_cell import Source, holds_named_tuple


def brought_along(code: CodeType, notebook: dict[str, Any]) -> tuple[list[Source], dict[str, Any], dict[str, str]]:
    """The notebook's variables that the code needs: definitions and imports as text, values, and those left out.

    Definitions bring along what they need themselves.
    """
    cells: list[str] = notebook.get("In", [])
    imports: list[str] = []
    found: dict[tuple[int, int], str] = {}  # (cell, line) -> a definition's text, with its line numbers in the cell
    values: dict[str, Any] = {}
    left_out: dict[str, str] = {}  # name -> why, and what to do
    needed, seen = names_in(code), {"comm", "np", *vars(builtins)}
    while needed:
        name = needed.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in notebook:
            if was_on_ranks(name, cells):
                left_out[name] = left_on_ranks(name)
            continue
        value = notebook[name]
        definition = find_definition(name, cells, value) if getattr(value, "__module__", "") == "__main__" else None
        if isinstance(value, ModuleType):
            imports.append(f"import {value.__name__} as {name}")
        elif definition:
            place, text = definition
            found[place] = text
            needed |= names_in(compile(text, "a definition", "exec"))
        elif can_be_imported(value):
            imports.append(f"from {value.__module__} import {value.__qualname__} as {name}")
        elif statement := find_import(name, value, cells):
            imports.append(statement)
        elif reason := why_left_out(name, value):
            left_out[name] = reason
        else:
            values[name] = value
    definitions = [(f"In[{cell}]", text) for (cell, _), text in sorted(found.items())]
    return [("imports", "\n".join(sorted(imports))), *definitions], values, left_out


def can_be_imported(value: Any) -> bool:
    """Whether a function or class can be found in its module under its own name."""
    if not (inspect.isroutine(value) or inspect.isclass(value)) or value.__module__ in (None, "__main__"):
        return False
    return getattr(sys.modules.get(value.__module__), value.__qualname__, None) is value


def find_import(name: str, value: Any, cells: list[str]) -> str:
    """The `from ... import` in a cell that gave this name this value; "" if there is none."""
    statements = [node for cell in cells for node in parsed(cell) if isinstance(node, ast.ImportFrom) and node.module]
    for statement in statements:
        for alias in statement.names:
            found = getattr(sys.modules.get(str(statement.module)), alias.name, None)
            if name == (alias.asname or alias.name) and found is value:
                return f"from {statement.module} import {alias.name} as {name}"
    return ""


def why_left_out(name: str, value: Any) -> str:
    """Why a variable of the notebook cannot pass to the ranks, and what to do; "" if it can."""
    if isinstance(value, FunctionType):
        if value.__name__ == "<lambda>":
            return f"{name} is a lambda, and ranks are given functions by their text: write it with def {name}(...)."
        return f"{name} was not defined at the top level of a cell, where ranks get its text from: define it there."
    if inspect.isclass(value) and issubclass(value, tuple) and hasattr(value, "_fields"):
        return f"{name} was made by namedtuple(), without a text for the ranks: write class {name}(typing.NamedTuple)."
    try:
        encode.check(value)
    except (TypeError, RecursionError):
        kind = type(value).__name__
        return f"{name} (of type {kind}) cannot pass from the notebook to the ranks: make it in the cell."
    if holds_named_tuple(value):
        return f"{name} has a named tuple in it, which would reach the ranks as a plain one: make it in the cell."
    return ""


def find_definition(name: str, cells: list[str], value: Any = None) -> tuple[tuple[int, int], str] | None:
    """((cell, line), text) of the last function or class `name` at the top level of a cell, with its line numbers
    there. None if there is none, or if a cell has given the name another value since, as its `value` now shows."""
    for number in reversed(range(len(cells))):
        for node in reversed(parsed(cells[number])):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if node.name == name:
                    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                    lines = cells[number].splitlines()[first - 1 : node.end_lineno]
                    return (number, first), "\n" * (first - 1) + "\n".join(lines) + "\n"
            elif getattr(value, "__name__", name) != name and name in assigned(node):
                return None
    return None


def assigned(statement: ast.stmt) -> set[str]:
    """The names to which a statement gives values."""
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


def parsed(cell: str) -> list[ast.stmt]:
    """The statements of a cell; none if it is not valid Python."""
    try:
        return ast.parse(cell).body
    except SyntaxError:
        return []


def was_on_ranks(name: str, cells: list[str]) -> bool:
    """Whether a `%%mpirun` cell before the last cell contains this name."""
    return any(re.search(rf"run_cell_magic\('mpirun'.*\b{re.escape(name)}\b", cell) for cell in cells[:-1])


def left_on_ranks(name: str) -> str:
    return f"If {name} is of an earlier %%mpirun, it went with its ranks: keep it with --out {name}."
