"""Text to train on: a character vocabulary, a training and a validation part, and batches drawn by seed."""

import itertools
import json
import math
import os
import re
import shlex
import sys
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from minidist import UsageError
from minidist.cli.formats import name_format
from minidist.cli.paths import check_readable

Array = np.ndarray
LONGEST = 2 * 10**8  # bytes in a text: every process holds all of it
HELP_PAGES = Path(__file__).with_name("python_help.txt")  # of one version: the same losses everywhere


@dataclass
class Corpus:
    """A text as token numbers: `train` is the first nine tenths, `validation` the rest."""

    name: str
    vocabulary: str  # token number i stands for character vocabulary[i]
    train: Array  # (n,) integers
    validation: Array
    note: str = ""  # what the user should know about how the file was read

    def batch(self, n: int, context: int, key: tuple[int, ...]) -> tuple["Sequences", "Sequences"]:
        """n sequences drawn from the training part: inputs x (n, context), and targets y, x shifted by one character.

        The same key draws the same sequences on every rank.
        """
        starts = np.random.default_rng(key).integers(0, len(self.train) - context, n)
        return Sequences(self.train, starts, context), Sequences(self.train, starts + 1, context)

    def validation_batch(self, n: int, context: int) -> tuple["Sequences", "Sequences"]:
        """n sequences spread evenly over the validation part, always the same."""
        starts = np.linspace(0, len(self.validation) - context - 1, n).astype(int)
        return Sequences(self.validation, starts, context), Sequences(self.validation, starts + 1, context)

    def spread(self, v: int) -> "Corpus":
        """The same text for a model of v tokens. Its characters are the first of these. 0: it has no others. Raises
        UsageError if it has more."""
        characters = len(self.vocabulary)
        if v and characters > v:
            raise UsageError(
                f"{self.name} has {characters} different characters, and the model {v} tokens: use another"
            )
        return replace(self, vocabulary=self.vocabulary.ljust(v, "\N{REPLACEMENT CHARACTER}"))

    def checksum(self) -> str:
        """A checksum of the text as token numbers: BLAKE2b, 128 bits, hexadecimal."""
        return blake2b(self.train.tobytes() + self.validation.tobytes(), digest_size=16).hexdigest()

    def unigram_entropy(self) -> float:
        """The loss on this text, in nats per character, of a model that knows only how frequent each character is."""
        counts = np.bincount(np.concatenate([self.train, self.validation]))
        p = counts[counts > 0] / counts.sum()
        return float(-(p * np.log(p)).sum())

    def decode(self, tokens: Array) -> str:
        """The characters of some token numbers."""
        return "".join(self.vocabulary[token] for token in tokens)


class Sequences:
    """Sequences (n, context) of a text that are not read yet: a rank that takes some rows reads these alone."""

    def __init__(self, text: Array, starts: Array, context: int) -> None:
        self.text, self.starts, self.shape = text, starts, (len(starts), context)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, rows: slice | Array) -> "Sequences":
        return Sequences(self.text, self.starts[rows], self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Their token numbers, read from the text."""
        return self.text[self.starts[:, None] + np.arange(self.shape[1])]


_shared: WeakValueDictionary[tuple[str, str | None, int, int, int], Corpus] = (
    WeakValueDictionary()
)  # by ranks of a process


def load(path: str | None, context: int, field: str | None = None, v: int = 0) -> Corpus:
    """Load a text file; without a path, the help pages of Python 3.11: half a million characters of English. Of a file
    named .jsonl or .ndjson, or of any file with a `field`, each line is a JSON object, whose field of that name, or
    `text`, is a document. v: tokens of a model that is loaded (`Corpus.spread`). Raises UsageError if there is no such
    file, or too little text for sequences of `context`."""
    path = path or str(HELP_PAGES)
    size = check_readable("--data", path)
    key = path, field, size, os.stat(path).st_mtime_ns, v
    corpus = _shared.get(key) or _shared.setdefault(key, _load(path, size, field).spread(v))
    characters = len(corpus.train) + len(corpus.validation)
    shortest = 10 * (context + 1)  # so that a tenth of it holds one sequence and its last target
    if characters < shortest:
        raise UsageError(
            f"{corpus.name} has {characters} characters; --context {context} needs at least {shortest}:"
            " use a longer text or a shorter context"
        )
    return corpus


def _load(path: str, size: int, field: str | None) -> Corpus:
    text, name, note = _read(path, size), Path(path).name, ""
    if field or path.lower().endswith((".jsonl", ".ndjson")):
        documents = _documents(text, field or "text", f"--data {path}")
        text = "\n".join(documents)
        note = f"{name} has {len(documents):,} documents, one in each line: the field {field or 'text'!r:.60} is used"
        note += "" if field else " (--text-field NAME: another)"
    return _tokenize(name, text, note)


def _tokenize(name: str, text: str, note: str) -> Corpus:
    characters = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    numbers = np.zeros(sys.maxunicode + 1, np.int32)  # by code point
    numbers[characters] = 1
    codes = np.flatnonzero(numbers)
    numbers[codes] = np.arange(len(codes))
    tokens = numbers[characters]
    tokens.flags.writeable = False
    cut = len(tokens) * 9 // 10
    vocabulary = "".join(map(chr, codes))
    return Corpus(name, vocabulary, tokens[:cut], tokens[cut:], note)


def _read(path: str, size: int) -> str:
    if size > LONGEST:
        raise UsageError(f"--data {path} has {size / 1e6:,.0f} MB, and {LONGEST / 1e6:g} may be read: use a part of it")
    try:
        if found := name_format(path):
            raise UsageError(f"cannot read --data {path}: it is {found}")
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read --data {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--data {path} is not UTF-8 text (byte {error.start}): convert it first") from None
    if not text:
        raise UsageError(f"--data {path} is empty")
    before, zero, _ = text.partition("\0")
    if zero:
        line = before.count("\n") + 1
        raise UsageError(f"cannot read --data {path}: it is no text: there is a zero byte in its line {line}")
    return text


SURROGATES = re.compile("[\ud800-\udfff]")  # halves of characters, which JSON can say and UTF-8 cannot


def _documents(text: str, field: str, name: str) -> list[str]:
    """The documents in lines of JSON. Raises UsageError, with the line, for any other line."""
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise UsageError(f"{name}: line {number} is no JSON object")
        if not isinstance(value := document.get(field), str):
            others = (key for key, value in document.items() if isinstance(value, str) and key.isprintable())
            hint = "".join(f": use --text-field {shlex.quote(other)}" for other in itertools.islice(others, 1))
            raise UsageError(f"{name}: line {number} has no text in a field {field!r:.60}{hint or ', nor in another'}")
        found.append(SURROGATES.sub("\ufffd", value.replace("\r\n", "\n")))
    if not found:
        raise UsageError(f"{name} has no document")
    return found
