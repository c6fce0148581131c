"""A mistake as data: text of the correct program, and what replaces it.

A TOML file lists mistakes, one table each. `old` and `new` are a change: old must occur exactly once. If a mistake
takes more than one change, each further one has a table of its own. Changes are made in this order:

    [[mutant]]
    old = "x[0]"
    new = "x[1]"

    [[mutant.change]]
    old = "y[0]"
    new = "y[1]"

The table's other keys are for the program that reads it: what the mistake is, and what must notice it.
"""

import base64
import re
import tomllib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidist import UsageError


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Changes to a text, each with the old and the new words."""

    changes: tuple[tuple[str, str], ...] = ()

    def apply(self, text: str, where: str) -> str:
        """The changed text. Raises UsageError if old words do not occur exactly once; where: its name for the text."""
        for old, new in self.changes:
            if (times := text.count(old)) != 1:
                raise UsageError(f"its old text occurs {times} times in {where}")
            text = text.replace(old, new)
        return text


def read_patches(written: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The tables [[kind]] of a document as keywords: arrays are tuples, and all changes one tuple."""
    return [keywords_of(table) for table in written.get(kind, [])]


def keywords_of(table: dict[str, Any]) -> dict[str, Any]:
    keywords = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    changes = [keywords] if "old" in keywords else []
    pairs = tuple((change["old"], change["new"]) for change in (*changes, *keywords.pop("change", ())))
    return {name: value for name, value in keywords.items() if name not in ("old", "new")} | {"changes": pairs}


def read_document(file: Path) -> dict[str, Any]:
    return tomllib.loads(read_text(file))


def read_text(file: Path) -> str:
    """The text of a file; in a student's edition, of a sealed one, too (`classroom/course/release.py`)."""
    text = file.read_text(encoding="utf-8")
    sealed = re.search(r'b85decode\("([^"]+)"\)', text) if text.startswith('"""Sealed: ') else None
    return zlib.decompress(base64.b85decode(sealed[1])).decode() if sealed else text
