"""Jobs for `minidist.mapreduce`: the paper's examples, and how to write one's own.

A job is anything with two functions, as the paper has them (section 2): a class, a module, or `Functions(map, reduce)`.

    map(document, line) -> pairs        (key, value) for each pair, both text
    reduce(key, values) -> values       what stands behind the key in the output: a line each; None: the key alone

and, if it wants to, with more:

    combine(key, values) -> values      the reduce that already runs where map ran (section 4.3), on some of a key's
                                        values, on what it has returned itself, or not at all
    partition(key, reducers) -> int     which of the outputs a key belongs to (section 4.1); crc32(key) mod R otherwise
    plan(lines, reducers)               called once before the job with a sample of the input
    map_block(document, text) -> (pairs, n, bytes)
                                        map and combine of many lines at once, for speed; n and bytes: how many pairs
                                        map would have emitted, and how many bytes their keys and values take

It may count in `self.counters`, a Counter that is new for each task; the sums stay exact however often a task is done
(section 4.9). Values of a key come in the order of the input.
"""

import bisect
import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minidist import UsageError

Pairs = Iterable[tuple[str, str]]


@dataclass
class Functions:
    """A job from a pair of functions."""

    map: Callable[[str, str], Pairs]
    reduce: Callable[[str, Iterable[str]], Iterable[str | None]]
    combine: Callable[[str, Iterable[str]], Iterable[str]] | None = None
    partition: Callable[[str, int], int] | None = None
    counters: Counter[str] = field(default_factory=Counter)


WORD = r"\w+"


class WordCount:
    """How often each word occurs: runs of \\w characters, or what the pattern matches, case-folded (section 2.1)."""

    def __init__(self, pattern: str = WORD) -> None:
        self.pattern, self.words = pattern, re.compile(pattern)

    def map(self, document: str, line: str) -> Iterator[tuple[str, str]]:
        for word in matches(self.words, line):
            yield word.casefold(), "1"

    def reduce(self, key: str, values: Iterable[str]) -> Iterator[str]:
        yield str(sum(map(int, values)))

    combine = reduce

    def map_block(self, document: str, text: str) -> tuple[Pairs, int, int]:
        """Nearly all lines of most texts are ASCII, and in these words can be found and counted without a search."""
        plain, lines = ascii_lines(text) if self.pattern == WORD else (b"", text.split("\n"))
        words, counts = count_ascii_words(plain)
        others = Counter(w.casefold() for line in lines for w in matches(self.words, line.removesuffix("\r")))
        words += others.keys()
        counts += others.values()
        total = sum(counts)
        nbytes = sum(len(word.encode()) * n for word, n in zip(words, counts, strict=True)) + total  # and a "1" each
        return zip(words, map(str, counts), strict=True), total, nbytes


def ascii_lines(text: str) -> tuple[bytes, list[str]]:
    """The lines of a text that are all ASCII, as one, and the others."""
    data = text.encode()
    plain, others, end = [], [], 0
    for place in np.flatnonzero(np.frombuffer(data, np.uint8) > 127).tolist():
        if place >= end:
            start = data.rfind(b"\n", end, place) + 1 or end
            plain.append(data[end:start])
            end = data.find(b"\n", place) + 1 or len(data)
            others.append(data[start:end].decode())
    return b"".join([*plain, data[end:]]), others


# Of the ASCII characters: letters to lower case, other \w as they are, the rest to zero.
WORD_BYTES = bytes(ord(chr(i).lower()) if re.match(r"\w", chr(i)) else 0 for i in range(128)) + bytes(128)
FIRST_BYTES = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)  # of a word of 8 bytes


def count_ascii_words(text: bytes) -> tuple[list[str], list[int]]:
    """The different words of a text in ASCII, in lower case, and how often each of them occurs.

    Up to eight characters are one number of 64 bits, and sorting numbers is the fastest way to count them.
    """
    folded = b"\0" + text.translate(WORD_BYTES) + bytes(8)
    edges = np.flatnonzero(np.diff(np.frombuffer(folded, np.uint8) != 0)) + 1
    starts, ends = edges[::2], edges[1::2]
    lengths = ends - starts
    short, long = lengths <= 8, lengths > 8
    windows = np.ndarray(len(folded) - 7, "<u8", folded, strides=(1,))  # the eight bytes from each place on
    numbers, counts = np.unique(windows[starts[short]] & FIRST_BYTES[lengths[short]], return_counts=True)
    others = Counter(folded[i:j] for i, j in zip(starts[long].tolist(), ends[long].tolist(), strict=True))
    words = [word.decode() for word in (*numbers.view("S8").tolist(), *others)]
    return words, [*counts.tolist(), *others.values()]


class Grep:
    """The lines in which the pattern is found, behind the name of their file (section 2.3)."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.search = pattern, re.compile(pattern).search

    def map(self, document: str, line: str) -> Iterator[tuple[str, str]]:
        if self.search(line):
            yield document, line

    def reduce(self, key: str, values: Iterable[str]) -> Iterable[str]:
        return values


class InvertedIndex:
    """For each word the files in which it occurs (section 2.3)."""

    def __init__(self, pattern: str = WORD) -> None:
        self.pattern, self.words = pattern, re.compile(pattern)

    def map(self, document: str, line: str) -> Iterator[tuple[str, str]]:
        for word in {word.casefold() for word in matches(self.words, line)}:
            yield word, document

    def combine(self, key: str, values: Iterable[str]) -> Iterator[str]:
        yield from sorted(set(values))

    def reduce(self, key: str, values: Iterable[str]) -> Iterator[str]:
        yield " ".join(sorted(set(values)))


class Sort:
    """All lines in increasing order: read one after another, the output files are sorted (section 5.3).

    Which output a line belongs to is decided by where it stands among the lines of a sample.
    """

    def plan(self, lines: list[str], reducers: int) -> None:
        ordered = sorted(lines)
        self.bounds = [ordered[i * len(ordered) // reducers] for i in range(1, reducers)] if ordered else []

    def partition(self, key: str, reducers: int) -> int:
        return bisect.bisect_right(self.bounds, key)

    def map(self, document: str, line: str) -> Iterator[tuple[str, str]]:
        yield line, ""

    def reduce(self, key: str, values: Iterable[str]) -> Iterator[None]:
        for _ in values:
            yield None


def matches(pattern: re.Pattern[str], line: str) -> Iterable[str]:
    """What the pattern matches, empty matches left out."""
    found = [match[0] for match in pattern.finditer(line)] if pattern.groups else pattern.findall(line)
    return filter(None, found)


JOBS: dict[str, Callable[..., Any]] = {
    "wordcount": WordCount,
    "grep": Grep,
    "inverted-index": InvertedIndex,
    "sort": Sort,
}


def make(name: str, pattern: str | None) -> Any:
    """A shipped job by its name. Raises UsageError if it does not exist or the pattern is not one."""
    if name not in JOBS:
        raise UsageError(f"there is no job {name!r}; take one of {', '.join(JOBS)}, or --job module:Class")
    if name == "sort" and pattern is not None:
        raise UsageError("sort takes no --pattern")
    if name == "grep" and pattern is None:
        raise UsageError("grep needs a --pattern")
    try:
        return JOBS[name]() if pattern is None else JOBS[name](pattern)
    except re.error as error:
        raise UsageError(f"--pattern {pattern!r} is not a regular expression: {error}") from None


def load(name: str) -> Any:
    """The job that `module:Class`, or `module` with its functions, names. Raises UsageError if there is none."""
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for step in filter(None, attribute.split(".")):
            found = getattr(found, step)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"cannot load --job {name}: {error}") from None
    job = found() if isinstance(found, type) else found
    missing = [function for function in ("map", "reduce") if not callable(getattr(job, function, None))]
    if missing:
        raise UsageError(f"--job {name} has no function {' and no function '.join(missing)}")
    return job


def identity(job: Any) -> dict[str, str]:
    """What tells one job from another, for --resume."""
    return {"job": f"{job.map.__module__}:{job.map.__qualname__}", "pattern": getattr(job, "pattern", "")}
