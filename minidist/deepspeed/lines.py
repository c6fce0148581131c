"""Lines of an explanation: wrapped texts, values as a reader writes them, rows of figures."""

import textwrap
from typing import Any

from minidist.mpi.output import as_shown

GB = 10**9


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """Wrap a text to lines of 80 columns."""
    return textwrap.wrap(
        text,
        80,
        initial_indent=indent,
        subsequent_indent="      ",
        break_on_hyphens=False,
        break_long_words=False,  # a path can be copied
    )


def shown(value: Any) -> str:
    named = {"True": "true", "False": "false", "None": "null"}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    text = named.get(repr(value), str(value))
    return text if text.isprintable() else f"{value!r:.100}"


def line(what: str, formula: str, nbytes: float) -> str:
    return f"  {what:26} {as_shown(formula):38} {nbytes / GB:12,.3f}"
