"""Word count with NumPy, three times as fast: the same job as `minidist.mr.jobs.WordCount`, and not as easy to read.

Its record is a block of many lines at once (section 4.4: a job may bring a reader of its own), and its map combines
already: it emits each word of a block with its count.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from minidist.mr.files import Block, write_pair
from minidist.mr.jobs import WORD, WordCount, matches


class FastWordCount(WordCount):
    """WordCount, for jobs with a combiner."""

    def records(self, block: Block) -> Iterator[tuple[int, str]]:
        """All lines of a block as one record."""
        yield block.offset, block.text

    def map(self, document: str, text: str) -> Iterator[tuple[str, str]]:
        """Nearly all lines of most texts are ASCII, and in these words can be found and counted without a search."""
        plain, lines = ascii_lines(text) if self.pattern == WORD else (b"", text.split("\n"))
        words, counts = count_ascii_words(plain)
        others = Counter(w.casefold() for line in lines for w in matches(self.words, line.removesuffix("\r")))
        yield from zip(words, map(str, counts), strict=True)
        yield from zip(others, map(str, others.values()), strict=True)

    def measure(self, pairs: Sequence[tuple[str, str]]) -> tuple[int, int]:
        """A count stands for so many pairs of the word and a 1."""
        counts = [int(count) for _, count in pairs]
        sizes = [len(write_pair(word, "1").encode()) for word, _ in pairs]
        return sum(counts), sum(map(int.__mul__, counts, sizes))


# It is the same job: under the same name in reports, and for --resume.
functools.update_wrapper(FastWordCount.map, WordCount.map, assigned=("__module__", "__qualname__"))


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
