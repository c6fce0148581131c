"""What a chapter changes in the one before: each method next to the one that it replaces."""

import difflib
import html
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from minidist.contents import CHAPTERS

NAMES = [f"minidist.{chapter.name}" for chapter in CHAPTERS]


class Change(NamedTuple):
    """A method of a chapter, and what it replaces: "" if it is new."""

    name: str
    where: str  # the method that it replaces, with its module
    before: str
    after: str


def changes(chapter: str) -> list[Change]:
    """Of the classes of a chapter that continue a class of an earlier chapter or of the engine."""
    return [*_changes(importlib.import_module(f"minidist.{chapter}"))]


def _changes(module: ModuleType) -> Iterator[Change]:
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
            yield Change(f"{kind.__name__}.{name}", where, _code(old) if old else "", _code(method))


def _code(method: object) -> str:
    return textwrap.dedent(inspect.getsource(method)).rstrip()  # type: ignore[arg-type]


def as_html(found: list[Change]) -> str:
    """Two columns: before and after, lines that changed marked."""
    parts = []
    for change in found:
        title = html.escape(change.name)
        told = f"replaces <code>{html.escape(change.where)}</code>" if change.where else "new"
        parts.append(f'<div class="change"><p><strong><code>{title}</code></strong> {told}</p>{_columns(change)}</div>')
    return "\n".join(parts)


def _columns(change: Change) -> str:
    if not change.before:
        lines = "".join(f"<ins>{html.escape(line) or ' '}</ins>\n" for line in change.after.splitlines())
        return f'<pre class="diff" tabindex="0">{lines}</pre>'
    left, right = list[str](), list[str]()
    before, after = change.before.splitlines(), change.after.splitlines()
    for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        old, new = before[i:j], after[k:m]
        most = max(len(old), len(new))
        mark = (lambda line, name: html.escape(line)) if tag == "equal" else _mark
        left += [*(mark(line, "del") for line in old), *[""] * (most - len(old))]
        right += [*(mark(line, "ins") for line in new), *[""] * (most - len(new))]
    return (
        f'<div class="two"><pre class="diff" tabindex="0">{chr(10).join(left)}</pre>'
        f'<pre class="diff" tabindex="0">{chr(10).join(right)}</pre></div>'
    )


def _mark(line: str, name: str) -> str:
    return f"<{name}>{html.escape(line) or ' '}</{name}>"
