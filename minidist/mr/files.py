"""What MapReduce reads and writes: splits of the input, region files, and the runs of the external sort.

Region files hold intermediate pairs as `key<TAB>value`, one per line, in UTF-8. A backslash, tab or line break inside
a key or value is written as \\\\, \\t or \\n. What the shuffle moves can be read in these files while a job runs.
"""

import heapq
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Number
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from minidist import UsageError
from minidist.cli.formats import name_format
from minidist.papers.mapreduce import pair_bytes
from minidist.system.files import on_disk

Pair = list[str]  # [key, value]


class JobError(Exception):
    """The user's functions do not do what `minidist.mr.jobs` asks of them."""


SPLIT = 16 << 20  # bytes of a split, if no number of splits is given: the lower end of the paper's 16 to 64 MB


# ---- the input -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputPiece:
    """Bytes `start` to `end` of a file; each is the beginning of a line, or the end of the file."""

    path: str
    start: int
    end: int

    @property
    def document(self) -> str:
        """The file's name as text, whatever bytes the file system has."""
        return os.fsencode(self.path).decode(errors="replace")


@dataclass(frozen=True)
class LineBlock:
    """Some whole lines of a file."""

    document: str
    offset: int  # in the file
    data: bytes
    text: str  # the same, with U+FFFD for each sequence that cannot be decoded

    @property
    def replaced(self) -> int:
        """How many sequences could not be decoded."""
        replacements = self.text.count("\ufffd")
        return replacements and replacements - self.data.count("\ufffd".encode())

    def __len__(self) -> int:
        """The number of lines."""
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))

    def lines(self) -> Iterator[tuple[int, str]]:
        """(offset in the file, line without its end) for each line. Lines end in LF or CR LF."""
        offset = self.offset
        data, text = self.data.removesuffix(b"\n").split(b"\n"), self.text.removesuffix("\n").split("\n")
        for line, decoded in zip(data, text, strict=True):
            yield offset, decoded.removesuffix("\r")
            offset += len(line) + 1


def check_inputs(paths: Sequence[str]) -> list[tuple[str, int]]:
    """(path, bytes) of each file. Raises UsageError unless all can be read."""
    sizes = []
    for path in paths:
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
                raise UsageError(f"cannot read {path}: it is not a regular file")
            if found := name_format(path):  # some files of /proc can be opened but not read
                raise UsageError(f"cannot read {path}: it is {found}")
            sizes.append((path, os.path.getsize(path)))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return sizes


def next_line(path: str, size: int, offset: int) -> int:
    """The first place at or after `offset` where a line begins; the end of the file if there is none."""
    if offset == 0:
        return 0
    with open(path, "rb") as file:
        file.seek(offset - 1)
        while chunk := file.read(1 << 16):
            if (found := chunk.find(b"\n")) >= 0:
                return file.tell() - len(chunk) + found + 1
    return size


def blocks(pieces: Sequence[InputPiece], size: int, moved: Counter[str]) -> Iterator[LineBlock]:
    """The lines of a split, about `size` bytes at a time; a line that is longer comes whole. Added to `moved`: bytes of
    input, and those that the file's buffer has read ahead."""
    for piece in pieces:
        with on_disk("read", piece.path), open(piece.path, "rb") as file:
            offset = file.seek(piece.start)
            try:
                while offset < piece.end:
                    data = file.read(min(size, piece.end - offset))
                    if not data.endswith(b"\n"):
                        data += file.readline()
                    if not data:
                        raise OSError("it has become shorter while it was read")
                    yield LineBlock(piece.document, offset, data, data.decode(errors="replace"))
                    offset += len(data)
            finally:
                moved["input read"] += offset - piece.start
                moved["read ahead"] += place_in(file) - offset


def place_in(file: IO[Any]) -> int:
    """The kernel's position in a file. When a file is read, it may be ahead of the reader, because of the buffer."""
    return os.lseek(file.fileno(), 0, os.SEEK_CUR)


def sample(files: Sequence[tuple[str, int]], lines: int) -> list[str]:
    """About `lines` lines from evenly spaced places of the input: always the same."""
    if lines == 0:
        return []
    total = max(1, sum(size for _, size in files))
    found = []
    for path, size in files:
        share = -(-lines * size // total)
        with open(path, "rb") as file:
            for i in range(share):
                place = next_line(path, size, i * size // share)
                file.seek(place)
                if line := file.readline():
                    found.append(line.decode(errors="replace").removesuffix("\n").removesuffix("\r"))
    return found


# ---- intermediate pairs ----------------------------------------------------------------------------------------------

ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n"}
SPECIAL, ESCAPED = re.compile(r"[\\\t\n]"), re.compile(r"\\[\\tn]")
MEANINGS = {written: character for character, written in ESCAPES.items()}


def write_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """The lines of pairs in a region file."""
    lines = "".join([f"{key}\t{value}\n" for key, value in pairs])
    if "\\" in lines or not lines.count("\t") == lines.count("\n") == len(pairs):
        lines = "".join([write_pair(key, value) for key, value in pairs])
    return lines


def write_pair(key: str, value: str) -> str:
    """The line of a pair in a region file."""
    line = f"{key}\t{value}\n"
    if "\\" in line or line.count("\t") > 1 or line.count("\n") > 1:
        key, value = (SPECIAL.sub(lambda found: ESCAPES[found[0]], text) for text in (key, value))
        line = f"{key}\t{value}\n"
    return line


def iterate_returned(made: Any, function: str) -> Iterable[Any]:
    """The results of the user's function, one by one. Raises JobError unless it is a list or another iterable."""
    if isinstance(made, str) or not hasattr(made, "__iter__"):
        raise JobError(f"{function} returned {made!r}; it must return a list, or yield one after another")
    return made


def emit_pairs(map: Callable[[str, str], Iterable[Any]], document: str, text: str) -> Iterator[tuple[str, str]]:
    """The pairs that the user's map emits for a record. Raises JobError for anything but a pair of texts."""
    for pair in iterate_returned(map(document, text), "map"):
        if not (type(pair) is tuple and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], str)):
            raise JobError(f"map must emit pairs of two texts, not {pair!r}")
        yield pair


def combined(
    combine: Callable[[str, Iterable[str]], Iterable[Any]], key: str, values: Iterable[str]
) -> list[tuple[str, str]]:
    """The pairs that the user's combine makes from a key's values. Raises JobError for anything but a text."""
    pairs = [(key, value) for value in iterate_returned(combine(key, values), f"combine({key!r}, ...)")]
    for _, value in pairs:
        if not isinstance(value, str):
            raise JobError(f"combine({key!r}, ...) must give texts, not {value!r}")
    return pairs


def chosen(partition: Callable[[str, int], int], key: str, reducers: int) -> int:
    """The reduce task of a key by the user's partition. Raises JobError if there is no such task."""
    r = partition(key, reducers)
    if not (isinstance(r, Integral) and 0 <= r < reducers):
        wanted = f"a whole number from 0 to {reducers - 1}"
        raise JobError(f"partition({key!r}, {reducers}) returned {r!r}; it must return {wanted}")
    return r


def pairs_and_bytes(pairs: Sequence[tuple[str, str]]) -> tuple[int, int]:
    """How many pairs these are, and how many bytes they take in region files."""
    return len(pairs), pair_bytes(*zip(*pairs, strict=True)) if pairs else 0


def unescape(text: str) -> str:
    return ESCAPED.sub(lambda found: MEANINGS[found[0]], text) if "\\" in text else text


KEY = itemgetter(0)
PAIR_BYTES, VALUE_BYTES = 250, 60  # of Python objects around the characters of a pair, and of a value; measured


class Buffer:
    """Pairs that a map has emitted and not written yet: the values of each key, in the order of arrival."""

    def __init__(self) -> None:
        self.values: dict[str, list[str]] = {}
        self.held = 0  # bytes, about

    def add(self, key: str, value: str) -> None:
        if key in self.values:
            self.values[key].append(value)
        else:
            self.values[key] = [value]
            self.held += 2 * len(key) + PAIR_BYTES
        self.held += len(value) + VALUE_BYTES

    def take(self) -> Iterable[tuple[str, list[str]]]:
        """Take everything out of the buffer."""
        values, self.values, self.held = self.values, {}, 0
        return values.items()


FAN_IN = 64  # runs that are merged at a time: each is an open file with a buffer


class ExternalSort:
    """Sort pairs by key, in about `memory` bytes and as many files as it takes; equal keys keep the order of arrival.

    Pairs that no longer fit are sorted and written to a file, a run. At the end the runs are merged. Bytes of runs are
    added to `moved`. Pairs of intermediate merges go through `through`.
    """

    def __init__(
        self, folder: Path, memory: int, moved: Counter[str], through: Callable[[Iterable[Pair]], Iterable[Pair]] = iter
    ) -> None:
        self.folder, self.memory, self.moved, self.through = folder, memory, moved, through
        self.pairs: list[Pair] = []
        self.held = 0  # bytes
        self.rest = b""  # the beginning of a line whose end has not arrived yet
        self.runs: list[Path] = []
        self.written = 0  # runs in total
        self.count = 0  # pairs in total

    def add(self, piece: bytes) -> None:
        """Take the next bytes of a region."""
        lines, newline, self.rest = (self.rest + piece).rpartition(b"\n")
        if newline:
            text = lines.decode()
            fresh = [line.split("\t", 1) for line in text.split("\n")]
            if "\\" in text:
                fresh = [[unescape(key), unescape(value)] for key, value in fresh]
            self.pairs += fresh
            self.count += len(fresh)
            self.held += len(lines) + PAIR_BYTES * len(fresh)
            if self.held > self.memory:
                self._write_run(self._sorted())

    def merged(self) -> Iterator[Pair]:
        """All pairs in order of their keys."""
        if not self.runs:
            yield from self._sorted()
            return
        if self.pairs:
            self._write_run(self._sorted())
        while len(self.runs) > FAN_IN:  # neighbors with neighbors, so that equal keys keep their order
            groups = [self.runs[i : i + FAN_IN] for i in range(0, len(self.runs), FAN_IN)]
            self.runs = []
            for group in groups:
                self._write_run(self.through(heapq.merge(*map(self._read_run, group), key=KEY)))
                for run in group:
                    run.unlink()
        yield from heapq.merge(*map(self._read_run, self.runs), key=KEY)

    def _sorted(self) -> Iterator[Pair]:
        pairs, self.pairs, self.held = self.pairs, [], 0
        pairs.sort(key=KEY)
        return iter(pairs)

    def _write_run(self, pairs: Iterable[Pair]) -> None:
        self.runs.append(self.folder / f"run-{self.written:05}")
        self.written += 1
        with on_disk("write", self.runs[-1]):
            self.folder.mkdir(exist_ok=True)
            with open(self.runs[-1], "w", encoding="utf-8", newline="\n") as file:
                file.writelines(write_pair(key, value) for key, value in pairs)
                file.flush()
                self.moved["runs written"] += place_in(file)

    def _read_run(self, path: Path) -> Iterator[Pair]:
        with on_disk("read", path), open(path, encoding="utf-8", newline="\n") as file:
            try:
                for line in file:
                    key, value = line[:-1].split("\t", 1)
                    yield [unescape(key), unescape(value)]
            finally:
                self.moved["runs read"] += place_in(file)


# ---- the output ------------------------------------------------------------------------------------------------------


def output_lines(
    reduce: Callable[[str, Iterable[str]], Iterable[Any]], key: str, values: Iterable[str]
) -> Iterator[str]:
    """The lines that the user's reduce makes from a key's values. Raises JobError for anything but a line."""
    for value in iterate_returned(reduce(key, values), "reduce"):
        if not isinstance(value, str | None | Number):
            raise JobError(f"reduce must give texts or None, not {value!r}")
        line = key if value is None else f"{key}\t{value}"
        if "\n" in line:
            raise JobError(f"a line break cannot stand in a line of output: {line!r}")
        yield line + "\n"


# ---- names of files --------------------------------------------------------------------------------------------------


def part(r: int, reducers: int) -> str:
    """The name of an output file."""
    return f"part-{r:05}-of-{reducers:05}"


def region(folder: Path, r: int) -> Path:
    """The file with a map's pairs for reduce task r; it does not exist if there are none."""
    return folder / f"region-{r:05}"
