"""Lines of an explanation: wrapped texts, values as a reader writes them, rows of figures."""

import textwrap
from collections.abc import Iterator
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


def fits(needed: float, capacity: int, reserve: float, moment: str = "") -> Iterator[str]:
    """Whether a device of this capacity has room for a run. moment: the one at which most is needed."""
    left = capacity - reserve - needed
    verdict = f"yes, {left / GB:,.1f} are left" if left >= 0 else f"no, {-left / GB:,.1f} too many"
    free = f", and {reserve / GB:,.1f} in reserve" if reserve else ""
    yield f"\nDoes it fit in {capacity / GB:,.1f} GB?"
    yield from wrapped(f"{needed / GB:,.1f} GB are needed{moment}{free}: {verdict}")
