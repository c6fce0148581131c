"""What a schedule's own options may be: chunks of a stage, their layers, Llama 3's turns. It needs no NumPy."""

import math
from functools import cache
from itertools import accumulate, pairwise

from minidist import UsageError
from minidist.pp.schedules import SCHEDULES


def chunks_of(name: str, asked: int | None) -> int:
    """Chunks of a stage. Raises UsageError if the schedule cannot have that many."""
    schedule = SCHEDULES[name]
    if asked and asked != schedule.chunks and not schedule.any_chunks:
        if schedule.chunks > 1:
            raise UsageError(f"{name} has {schedule.chunks} chunks to a stage: leave out --chunks")
        raise UsageError(f"{name} has one chunk to a stage: leave out --chunks, or use --schedule interleaved")
    return asked or schedule.chunks


@cache
def parts(layers: int, n: int, first: int | None = None, last: int | None = None) -> tuple[range, ...]:
    """The units of each of n chunks: its layers; the first also has the embedding, and the last the head.

    If n divides the layers, each chunk has equally many. Otherwise embedding and head count as layers, and the first
    chunks have one more if that does not come out even (torchtitan's rule. Llama 3, section 3.3.2: 126 layers make 128
    units, and the first and the last stage have a layer fewer). first, last: the layers of these two chunks, if given;
    the others share the rest (Megatron-LM's --decoder-first-pipeline-num-layers). Raises UsageError if one has no unit.
    """
    before, after = ([] if given is None else [given] for given in (first, last))
    rest, others = layers - sum(before) - sum(after), n - len(before) - len(after)
    if others < 0 or rest < others - 2 * (not before + after) or (rest and not others):
        wanted = f", {first} of them in the first" * (first is not None) + f", {last} in the last" * (last is not None)
        raise UsageError(f"{n} chunks cannot have {layers} layers{wanted}")
    if layers % n and not before + after:
        sizes = spread(layers + 2, n)
    else:
        sizes = [*before, *spread(rest, others), *after]
        sizes[0] += 1
        sizes[-1] += 1
    return tuple(range(start, end) for start, end in pairwise(accumulate(sizes, initial=0)))


def spread(number: int, n: int) -> list[int]:
    """The sizes of n parts: equal, or the first ones larger by one."""
    less, more = divmod(number, max(n, 1))
    return [less + 1] * more + [less] * (n - more)


def contiguous_of(name: str, p: int, m: int, asked: int | None) -> int:
    """Llama 3's N: any number from p to m that leaves no rest of m, or a rest of p or more, as in Megatron-LM; by
    default the first above p. 0 for other schedules. Raises UsageError for an impossible number."""
    if name != "llama3":
        if asked:
            raise UsageError(f"--contiguous is of llama3, not of {name}: leave it out, or use --schedule llama3")
        return 0
    possible = [n for n in range(p, m + 1) if m % n == 0 or m % n >= p]
    if asked and asked not in possible:
        nearest = min(possible, key=lambda n: abs(n - asked))
        reason = f"a group of {p} or more would not be left" if p < asked < m else f"it is from {p} to {m}"
        raise UsageError(
            f"--contiguous {asked} on {p} stages with {m} micro-batches: {reason}: use --contiguous {nearest}"
        )
    return asked or next((n for n in possible if n > p), p)


@cache
def divisors(n: int) -> list[int]:
    """All divisors of n, in ascending order."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
