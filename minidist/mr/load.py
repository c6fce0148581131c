"""Which job the command line means: a shipped one, or one of the user's own."""

import importlib
import re
import reprlib
from collections.abc import Callable
from typing import Any

from minidist import UsageError
from minidist.mr.fast_words import FastWordCount
from minidist.mr.jobs import Grep, InvertedIndex, Sort, WordCount

JOBS: dict[str, Callable[..., Any]] = {
    "wordcount": WordCount,
    "grep": Grep,
    "inverted-index": InvertedIndex,
    "sort": Sort,
}


def make(name: str, pattern: str | None, fast: bool = False) -> Any:
    """A shipped job by its name. Raises UsageError if it does not exist or the pattern is invalid.

    fast: take a faster job with the same result, if there is one: its map gets many lines at once, and combines.
    """
    if name not in JOBS:
        raise UsageError(f"there is no job {name!r}; take one of {', '.join(JOBS)}, or --job module:Class")
    if name == "sort" and pattern is not None:
        raise UsageError("sort takes no --pattern")
    if name == "grep" and pattern is None:
        raise UsageError("grep needs a --pattern")
    kind = FastWordCount if fast and name == "wordcount" else JOBS[name]
    try:
        return kind() if pattern is None else kind(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"--pattern {reprlib.repr(pattern)} is not a regular expression: {error}") from None


def load(name: str) -> Any:
    """The job that `module:Class`, or `module` with its functions, names. Raises UsageError if there is none."""
    module_name, _, attribute = name.partition(":")
    try:
        job: Any = importlib.import_module(module_name)
        for step in filter(None, attribute.split(".")):
            job = getattr(job, step)
        if isinstance(job, type):
            job = job()
    except BaseException as error:  # the user's code may raise anything
        raise UsageError(f"cannot load --job {name}: {type(error).__name__}: {error}") from None
    missing = [function for function in ("map", "reduce") if not callable(getattr(job, function, None))]
    if missing:
        raise UsageError(f"--job {name} has no function {' and no function '.join(missing)}")
    return job
