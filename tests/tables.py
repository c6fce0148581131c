"""Cases that are data: those of test_x.py stand in test_x.toml."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def tables_of(test: str) -> dict[str, Any]:
    return tomllib.loads(Path(test).with_suffix(".toml").read_text(encoding="utf-8"))


def table(test: str, name: str) -> Any:
    """A table by its name, for `test`, which is __file__: rows are lists, tables with keys are dictionaries."""
    return tables_of(test)[name]
