"""Word count with NumPy, several times as fast: the job of `minidist.mr.jobs.WordCount`, and not as easy to read.

Its record is a block of many lines at once (section 4.4: a job may bring its own reader), and its map already combines:
it emits each word of a block with its count.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from minidist.mr.files import SPECIAL, LineBlock, write_pair
from minidist.mr.jobs import WORD, WordCount, matches


class FastWordCount(WordCount):
    """WordCount, for jobs with a combiner."""

    def records(self, block: LineBlock) -> Iterator[tuple[int, str]]:
        """All lines of a block as one record."""
        yield block.offset, block.text

    def map(self, document: str, text: str) -> Iterator[tuple[str, str]]:
        """Words separated by ASCII bytes are counted as bytes. Only the few distinct words that are not all ASCII need
        a closer look."""
        if self.pattern != WORD:
            lines = text.split("\n")
            found = Counter(w.casefold() for line in lines for w in matches(self.words, line.removesuffix("\r")))
            yield from zip(found, map(str, found.values()), strict=True)
            return
        others = Counter[str]()
        for words, counts in count_bytes(text.encode()):
            for word, count in zip(words, counts, strict=True):
                if word.isascii():
                    yield word.decode(), str(count)
                else:
                    for part in self.words.findall(word.decode()):
                        others[part.casefold()] += count
        yield from zip(others, map(str, others.values()), strict=True)

    def measure(self, pairs: Sequence[tuple[str, str]]) -> tuple[int, int]:
        """A count of n stands for n pairs of the word and a 1."""
        words, counts = zip(*pairs, strict=True) if pairs else ((), ())
        numbers, text = list(map(int, counts)), "".join(words)
        if text.isascii() and not SPECIAL.search(text):
            sizes = [len(word) + len("\t1\n") for word in words]
        else:
            sizes = [len(write_pair(word, "1").encode()) for word in words]
        return sum(numbers), sum(map(int.__mul__, numbers, sizes))


# It is the same job: under the same name in reports, and for --resume.
functools.update_wrapper(FastWordCount.map, WordCount.map, assigned=("__module__", "__qualname__"))

# ASCII letters become lower case, other \w characters stay, and other ASCII becomes zero. Bytes beyond ASCII stay.
WORD_BYTES = bytes(ord(chr(i).lower()) if re.match(r"\w", chr(i)) else 0 for i in range(128)) + bytes(range(128, 256))
PART = 1 << 19  # bytes
LOWEST, HIGHEST = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)  # bit of each of eight bytes
FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)  # odd, with bits all over


def count_bytes(text: bytes) -> Iterator[tuple[list[bytes], list[int]]]:
    """The different words of a text, of lower-case ASCII and of bytes above it, and how often each of them occurs.

    A word of up to seven bytes is one number of 64 bits: sorting numbers is the fastest way to count them. A word of up
    to fifteen bytes is two numbers, sorted by a hash of both, so that equal words come together. If different words
    have the same hash, a word may come more than once, with a part of its count.
    """
    short, first, second, long = zip(*map(numbers, split_words(text.translate(WORD_BYTES))), strict=True)
    (words,), counts = runs(np.sort(np.concatenate(short)))
    yield words.view("S8").tolist(), counts
    halves = [np.concatenate(first), np.concatenate(second)]
    order = np.argsort(halves[0] * FACTORS[0] ^ halves[1] * FACTORS[1])
    halves, counts = runs(*(half[order] for half in halves))
    yield np.stack(halves, axis=1).view("S16").ravel().tolist(), counts
    others = Counter(itertools.chain(*long))
    yield list(others), list(others.values())


def split_words(folded: bytes) -> Iterator[bytes]:
    """Parts of the text: whole words, with zeros around them. The cache holds all that is computed from a part."""
    begin = end = 0
    while end >= 0:
        end = folded.find(b"\0", begin + PART)
        yield b"\0" + folded[begin : end if end >= 0 else None] + bytes(16)
        begin = end + 1


def numbers(folded: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[bytes]]:
    """Words of up to seven bytes; of words of up to fifteen, the first eight bytes and the rest; longer words whole."""
    in_word = np.frombuffer(folded, np.uint8) != 0
    starts = np.flatnonzero(in_word[1:] > in_word[:-1]) + 1
    windows = np.ndarray(len(folded) - 7, "<u8", folded, strides=(1,))  # the eight bytes from each place on
    first, full = cut_word(windows[starts])
    short, starts, first = first[~full], starts[full], first[full]
    second, full = cut_word(windows[starts + 8])
    long = [folded[start : folded.find(b"\0", start)] for start in starts[full].tolist()]
    return short, first[~full], second[~full], long


def cut_word(window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight bytes (the first is the lowest) with all after the first zero set to zero; and where there is no zero."""
    zero = (window - LOWEST) & ~window & HIGHEST  # the lowest bit that is set is the highest of the first zero byte
    return window & (zero ^ (zero - np.uint64(1))), zero == 0


def runs(*arrays: np.ndarray) -> tuple[list[np.ndarray], list[int]]:
    """The distinct columns of sorted arrays of equal length, and how often each occurs."""
    new = np.ones(len(arrays[0]), bool)
    new[1:] = np.any([array[1:] != array[:-1] for array in arrays], axis=0)
    places = np.flatnonzero(new)
    return [array[places] for array in arrays], np.diff(places, append=len(new)).tolist()
