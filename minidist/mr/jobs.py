"""Jobs for `minidist.mapreduce`: the paper's examples, and how to write your own.

A job is anything with two functions, as the paper has them (section 2): a class, a module, or `Functions(map, reduce)`.

    map(document, line) -> pairs        (key, value) for each pair, both text
    reduce(key, values) -> values       the output after the key, one line for each; None: the key alone

A job may have more functions:

    combine(key, values) -> values      a reduce that already runs where map ran (section 4.3), on some of a key's
                                        values, on its own results, or not at all
    partition(key, reducers) -> int     the output that a key belongs to (section 4.1); by default crc32(key) mod R
    plan(lines, reducers)               called once before the job with a sample of the input
    records(block) -> (offset, text)    what map gets instead of lines (section 4.4); block: see minidist.mr.files
    measure(pairs) -> (n, bytes)        what these pairs stand for, if map has already combined

A function that raises ends the job. With --skip-bad N, up to N records that made one fail twice are left out
(section 4.6). map and reduce must give the same for the same input, whenever and wherever they run (section 3.3).

They may count in `self.counters`, a Counter that is new for each task; the sums stay exact, however often a task runs
(section 4.9). Values of a key come in the order of the input.
"""

import bisect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

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


class Grep:
    """The lines that contain the pattern, each after the name of its file (section 2.3)."""

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
        for word in dict.fromkeys(word.casefold() for word in matches(self.words, line)):  # in the same order each time
            yield word, document

    def combine(self, key: str, values: Iterable[str]) -> Iterator[str]:
        yield from sorted(set(values))

    def reduce(self, key: str, values: Iterable[str]) -> Iterator[str]:
        yield " ".join(sorted(set(values)))


class Sort:
    """All lines in increasing order: read one after another, the output files are sorted (section 5.3).

    The output file of a line depends on its place among the sorted lines of a sample.
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
    """The matches of the pattern in a line, except empty ones."""
    found = [match[0] for match in pattern.finditer(line)] if pattern.groups else pattern.findall(line)
    return filter(None, found)
