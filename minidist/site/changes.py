"""What a chapter changes in an earlier one: each method next to the one that it replaces."""

import ast
import difflib
import html
import importlib
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from minidist.contents import CHAPTERS

NAMES = [f"minidist.{chapter.name}" for chapter in CHAPTERS]


class MethodChange(NamedTuple):
    """A method of a chapter, and what it replaces: "" if it is new."""

    name: str
    where: str  # the method that it replaces, with its module
    before: str
    after: str


def changes(chapter: str) -> list[MethodChange]:
    """The changes in a chapter's classes that extend a class of an earlier chapter or the engine."""
    return [*_changes(importlib.import_module(f"minidist.{chapter}"))]


def _changes(module: ModuleType) -> Iterator[MethodChange]:
    for kind in vars(module).values():
        if not inspect.isclass(kind) or kind.__module__ != module.__name__:
            continue
        above = [base for base in kind.__mro__[1:] if base.__module__ in NAMES and base.__module__ != module.__name__]
        if not above:
            continue
        for name, method in vars(kind).items():
            if not inspect.isfunction(method):
                continue
            old = next(
                (vars(base)[name] for base in kind.__mro__[1:] if inspect.isfunction(vars(base).get(name))), None
            )
            where = f"{old.__module__.removeprefix('minidist.')}: {old.__qualname__}" if old else ""
            yield MethodChange(f"{kind.__name__}.{name}", where, _code(old) if old else "", _code(method))


def _code(method: object) -> str:
    """A method's code without its docstring, which the page shows next to it as a note."""
    source = textwrap.dedent(inspect.getsource(method))  # type: ignore[arg-type]
    [function] = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    lines, note = source.rstrip().splitlines(), function.body[0]
    if ast.get_docstring(function):
        del lines[note.lineno - 1 : note.end_lineno]
    return "\n".join(lines)


def as_html(found: list[MethodChange]) -> str:
    """Two columns: before and after, lines that changed marked."""
    parts = []
    for change in found:
        title = html.escape(change.name)
        told = f"replaces <code>{html.escape(change.where)}</code>" if change.where else "new"
        parts.append(f'<div class="change"><p><strong><code>{title}</code></strong> {told}</p>{_columns(change)}</div>')
    return "\n".join(parts)


def _columns(change: MethodChange) -> str:
    """A row for each line or pair of lines. On a phone the lines of a pair are stacked; unchanged ones appear once."""
    before, after = change.before.splitlines(), change.after.splitlines()
    rows = list[str]()
    for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for old, new in itertools.zip_longest(before[i:j], after[k:m]):
            cells = [_line(old, "del"), _line(new, "ins")] if tag != "equal" else [_line(old, ""), _line(new, "same")]
            rows.append(f"<div>{''.join(cells if before else cells[1:])}</div>")
    return f'<div class="diff{" new" * (not before)}">{"".join(rows)}</div>'


def _line(line: str | None, kind: str) -> str:
    """A line of a column. If it is too long, it is wrapped, and the rest is indented further."""
    if line is None:
        return '<code class="none"></code>'
    indent = len(line) - len(line.lstrip()) + 4
    tag = kind if kind in ("del", "ins") else "span"
    text = f"<{tag}>{html.escape(line) or ' '}</{tag}>"
    return f'<code class="{kind}" style="padding-left:{indent}ch;text-indent:-{indent}ch">{text}</code>'
