"""Text to train on: a character vocabulary, a training and a validation part, and batches drawn by seed."""

import sys
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from minidist import UsageError
from minidist.cli.paths import check_readable
from minidist.nn.layers import Sequences

Array = np.ndarray
LONGEST = 2 * 10**8  # bytes in a text: every process holds all of it
HELP_PAGES = Path(__file__).parent / "text" / "python_help.txt"  # of one version: the same losses everywhere


@dataclass
class Corpus:
    """A text as token numbers: `train` is the first nine tenths, `validation` the rest."""

    name: str
    vocabulary: str  # token number i stands for character vocabulary[i]
    train: Array  # (n,) integers
    validation: Array

    def batch(self, n: int, context: int, key: tuple[int, ...]) -> tuple[Sequences, Sequences]:
        """n sequences drawn from the training part: inputs x (n, context), and targets y, x shifted by one character.

        The same key draws the same sequences on every rank. A rank reads those that it takes from x and y.
        """
        starts = np.random.default_rng(key).integers(0, len(self.train) - context, n)
        return _sequences(self.train, starts, context)

    def validation_batch(self, n: int, context: int) -> tuple[Sequences, Sequences]:
        """n sequences spread evenly over the validation part, always the same."""
        return _sequences(self.validation, np.linspace(0, len(self.validation) - context - 1, n).astype(int), context)

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


def _sequences(tokens: Array, starts: Array, context: int) -> tuple[Sequences, Sequences]:
    return Sequences(tokens, starts, context), Sequences(tokens, starts + 1, context)


_shared: WeakValueDictionary[tuple[str, bytes], Corpus] = WeakValueDictionary()  # by ranks of one process


def load(path: str | None, context: int) -> Corpus:
    """Load a text file; without a path, the help pages of Python 3.11: half a million characters of English. Raises
    UsageError if there is no such file, or too little text for sequences of `context`."""
    path = path or str(HELP_PAGES)
    text, name = _read(path), Path(path).name
    shortest = 10 * (context + 1)  # so that a tenth of it holds one sequence and its last target
    if len(text) < shortest:
        raise UsageError(
            f"{name} has {len(text)} characters; --context {context} needs at least {shortest}:"
            " use a longer text or a shorter context"
        )
    key = name, blake2b(text.encode(), digest_size=16).digest()
    return _shared.get(key) or _shared.setdefault(key, _tokenize(name, text))


def _tokenize(name: str, text: str) -> Corpus:
    characters = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    numbers = np.zeros(sys.maxunicode + 1, np.int32)  # by code point
    numbers[characters] = 1
    codes = np.flatnonzero(numbers)
    numbers[codes] = np.arange(len(codes))
    tokens = numbers[characters]
    tokens.flags.writeable = False
    cut = len(tokens) * 9 // 10
    vocabulary = "".join(map(chr, codes))
    return Corpus(name, vocabulary, tokens[:cut], tokens[cut:])


def _read(path: str) -> str:
    size = check_readable("--data", path)
    if size > LONGEST:
        raise UsageError(f"--data {path} has {size / 1e6:,.0f} MB, and {LONGEST / 1e6:g} may be read: use a part of it")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read --data {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--data {path} is not UTF-8 text (byte {error.start}): convert it first") from None
    if not text:
        raise UsageError(f"--data {path} is empty")
    return text
