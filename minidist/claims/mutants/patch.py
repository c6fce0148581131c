"""A mistake as data: what a right program says, and what stands there instead.

A TOML file lists mistakes, one table each. `old` and `new` are a change: old must occur exactly once. A mistake that
takes more than one change has the others in tables of their own, which are made in this order:

    [[mutant]]
    old = "x[0]"
    new = "x[1]"

    [[mutant.change]]
    old = "y[0]"
    new = "y[1]"

What else a table says is for the program that reads it: what the mistake is, and what must notice it.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidist import UsageError


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Changes of a text, each with the old and the new words."""

    changes: tuple[tuple[str, str], ...] = ()

    def apply(self, text: str, where: str) -> str:
        """The changed text. where: what text it is, for the UsageError if old words do not occur exactly once."""
        for old, new in self.changes:
            if (times := text.count(old)) != 1:
                raise UsageError(f"its old text occurs {times} times in {where}")
            text = text.replace(old, new)
        return text


def read_patches(written: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The tables [[kind]] of a document as keywords: changes in one tuple, and tuples for arrays."""
    return [keywords_of(table) for table in written.get(kind, [])]


def keywords_of(table: dict[str, Any]) -> dict[str, Any]:
    keywords = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    changes = [keywords] if "old" in keywords else []
    pairs = tuple((change["old"], change["new"]) for change in (*changes, *keywords.pop("change", ())))
    return {name: value for name, value in keywords.items() if name not in ("old", "new")} | {"changes": pairs}


def read_document(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))
