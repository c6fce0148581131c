"""An order of work written by hand: "F0 F1 B0 ..." for a stage.

F, B and W, and the micro-batch, from 0. A small letter is chunk 1; f0.2 is chunk 2. If a stage's line has no W of a
micro-batch, its B also computes the gradient of the weights. F1&B0 is a forward that overlaps with a whole backward.
Messages are not written: a stage waits for what its work needs, and sends what it has made.
"""

import re
from collections.abc import Iterable, Iterator

from minidist import UsageError
from minidist.pp.instructions import (
    Backward,
    Both,
    Forward,
    Instruction,
    Instructions,
    StagePlace,
    Step,
    Weight,
    backward,
    both,
    forward,
    name_of,
)

WORK = re.compile(r"([FBWfbw])(\d+)(?:\.(\d+))?")
Piece = tuple[str, int, int]  # letter, micro-batch, chunk


def write_order(instructions: Iterable[Instruction]) -> str:
    """A stage's work, in order. A W right after its B, before a message, is not written: it is a part of B."""
    words, before = list[str](), None
    for one in instructions:
        match one:
            case Weight(k, chunk) if before == Backward(k, chunk):
                pass
            case Both() | Forward() | Backward() | Weight():
                words.append(name_of(one))
        before = one
    return " ".join(words)


def read_order(line: str, at: StagePlace) -> Instructions:
    """The instructions of the stage at this place. Raises UsageError for a word that is no work, and for work that is
    there twice, too early or not at all. Only the clock can check what depends on other stages."""
    stage, words = f"stage {at.stage}", line.replace(",", " ").split()
    pieces = [[_piece(word, at, stage) for word in both_words.split("&")] for both_words in words]
    done, apart = set[Piece](), {(k, chunk) for (letter, k, chunk), *_ in pieces if letter == "W"}
    for word, (letter, k, chunk) in _each(words, pieces):
        if (letter, k, chunk) in done:
            raise UsageError(f"{stage}: {word} is there twice")
        needs = {"F": "", "B": "F", "W": "B"}[letter]
        if needs and (needs, k, chunk) not in done:
            raise UsageError(f"{stage}: {word} needs the {needs} of the same micro-batch and chunk before it")
        done.add((letter, k, chunk))
        if "&" in word and letter == "B":
            done.add(("W", k, chunk))
    every = ((k, chunk) for k in range(at.micro_batches) for chunk in range(at.chunks) if _is_own(at, k, chunk))
    for k, chunk in every:
        for work in (Forward(k, chunk), Backward(k, chunk)):
            if (type(work).__name__[0], k, chunk) not in done:
                raise UsageError(f"{stage}: {name_of(work)} is missing")
    return _instructions(pieces, at, apart)


def _instructions(pieces: list[list[Piece]], at: StagePlace, apart: set[tuple[int, int]]) -> Instructions:
    for (letter, k, chunk), *along in pieces:
        if along:
            [(_, *back)] = along
            yield from both(at, (k, chunk), (back[0], back[1]))
        elif letter == "F":
            yield from forward(at, k, chunk)
        elif letter == "B":
            yield from backward(at, k, chunk, weight=(k, chunk) not in apart)
        else:
            yield Weight(k, chunk)
    yield Step()


def _piece(word: str, at: StagePlace, stage: str) -> Piece:
    found = WORK.fullmatch(word)
    if not found:
        raise UsageError(f"{stage}: {word[:20]!r} is no work: write F0, B0 or W0, or f0 of chunk 1")
    k, chunk = int(found[2]), int(found[3] or found[1].islower())
    if not _is_own(at, k, chunk):
        has = f"micro-batches are 0 to {at.micro_batches - 1}, and it has {at.chunks} chunk{'s' * (at.chunks > 1)}"
        raise UsageError(f"{stage}: there is no {word}: {has}")
    return found[1].upper(), k, chunk


def _is_own(at: StagePlace, k: int, chunk: int) -> bool:
    """Whether a stage has this micro-batch in this chunk; in a cross, a chunk has every second micro-batch."""
    known = 0 <= k < at.micro_batches and 0 <= chunk < at.chunks
    return known and (at.shape != "cross" or k % 2 == chunk)


def _each(words: list[str], pieces: list[list[Piece]]) -> Iterator[tuple[str, Piece]]:
    for word, of_word in zip(words, pieces, strict=True):
        if len(of_word) > 1 and [letter for letter, _, _ in of_word] != ["F", "B"]:
            raise UsageError(f"{word}: only a forward and a backward overlap, in this order")
        yield from ((word, piece) for piece in of_word)
