"""Readers of a key's value: each takes the value from the file and returns it converted. For a value that is not
allowed, a reader raises ValueError, and the error's text says what is allowed.
"""

import math
import re
import sys
from collections.abc import Callable
from typing import Any

Reader = Callable[[Any], Any]


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def number(high: float = math.inf, above: bool = False) -> Reader:
    """Reads a number from 0 to high; above: 0 itself is too low."""
    bounds = "above 0" if above else "from 0 on" if high == math.inf else f"from 0 to {high:g}"

    def read(value: Any) -> float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not 0 <= value <= min(high, sys.float_info.max) or (above and value == 0):
            raise ValueError(f"a number {bounds}")
        return float(value)

    return read


def whole(low: int, high: int = sys.maxsize) -> Reader:
    """Reads a whole number, which may be written as 5e8."""

    def read(value: Any) -> int:
        fits = not isinstance(value, bool) and isinstance(value, int | float) and low <= value <= high
        if not fits or value != int(value):
            most = f" to {high}" if high < sys.maxsize else " on"
            raise ValueError(f"a whole number from {low}{most}")
        return int(value)

    return read


def one_of(*values: str | None) -> Reader:
    def read(value: Any) -> Any:
        if not (isinstance(value, str) or value is None) or value not in values:
            raise ValueError(f"one of {', '.join('null' if each is None else each for each in values)}")
        return value

    return read


def or_null(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def either(*readers: Reader) -> Reader:
    """Reads what the first of some readers takes."""

    def read(value: Any) -> Any:
        wanted = []
        for reader in readers:
            try:
                return reader(value)
            except ValueError as error:
                wanted.append(str(error))
        raise ValueError(" or ".join(wanted))

    return read


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def betas(value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("a list of two numbers")
    first, second = (number(1)(each) for each in value)
    if max(first, second) == 1:
        raise ValueError("two numbers below 1")
    return first, second


def anything(value: Any) -> Any:
    return value


def names(value: Any) -> Any:
    """One text, or a list of them."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("a list of names")
    return found


def pieces(*allowed: str) -> Reader:
    """Reads a list of texts: only the allowed ones, or any if none are given."""

    def read(value: Any) -> Any:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ValueError("a list of texts")
        if allowed and not set(value) <= set(allowed):
            raise ValueError(f"a list of {', '.join(allowed)}")
        return value

    return read


def section(**readers: Reader) -> Reader:
    """Reads an object with these keys, and no others."""

    def read(value: Any) -> Any:
        if not isinstance(value, dict) or not set(value) <= set(readers):
            raise ValueError(f"an object with {', '.join(readers)}")
        return {name: readers[name](each) for name, each in value.items()}

    return read


def section_of_any(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("an object")
    return value


WORDS = {True: ("true", "t", "yes", "y", "on", "1"), False: ("false", "f", "no", "n", "off", "0")}


def lenient(read: Reader, truth: bool = True) -> Reader:
    """Reads as pydantic does: "true", "yes", 1 and 1.0 are true, "500" is a number, and, with `truth`, true is 1."""

    def read_too(value: Any) -> Any:
        try:
            return read(value)
        except ValueError as error:
            for meant in other_meanings(value) if truth or not isinstance(value, bool) else ():
                try:
                    return read(meant)
                except ValueError:
                    continue
            raise error from None

    return read_too


def other_meanings(value: Any) -> list[Any]:
    """Other readings of a value: a truth value as a number, a number as a truth value, a text as either."""
    if isinstance(value, bool):
        return [int(value)]
    if isinstance(value, int | float):
        return [bool(value)] if value in (0, 1) else []
    if not isinstance(value, str):
        return []
    found: list[Any] = [truth for truth, words in WORDS.items() if value.lower() in words]
    return [*found, float(value)] if re.fullmatch(r"[+-]?\d+(\.\d*)?", value.strip()) else found
