"""What context-parallel ranks send for attention, and what is on its way at a time."""

from collections.abc import Sequence
from typing import NamedTuple

from minidist.formulas.asked import Asked
from minidist.formulas.shares import Part, parts_of
from minidist.papers import context

SOURCES = {"ring": "Ring Attention §3", "all-gather": "Llama 3 §3.3.2", "ulysses": "Ulysses §3.2"}
KEYS, GRADIENTS = "keys and values {}", "gradients of keys and values"
ALL_TO_ALL = "all-to-all {}"


class Blocks(NamedTuple):
    """The most bytes of keys and values on their way on one rank, if ranks divide the sequences."""

    backward: float = 0
    validation: float = 0


def heads_and_depth(run: Asked) -> tuple[int, int, int]:
    """Key/value heads of a rank, the width of one, and G: query heads to a key/value head."""
    return run.model.kv // run.layout.tp, run.model.h // run.model.a, run.model.a // run.model.kv


def blocks(run: Asked, validates: bool) -> list[Blocks]:
    """On each rank, the most bytes on their way in a backward, and in validation, which takes all sequences of a step
    at once, but only forward."""
    (kv, d, group), p, found = heads_and_depth(run), run.bytes.stored, []
    wide = d * p * (group + 2)
    for part, whole in zip(parts_of(run, run.micro_batch), parts_of(run, run.batch), strict=True):
        forward = whole.b * validates
        if run.attention == "ring":  # two rooms for keys and values; in the backward two more, for their gradients
            room = 2 * kv * d * p * max(part.of)
            found.append(Blocks(4 * part.b * room, 2 * forward * room))
        elif run.attention == "all-gather":  # all keys and values; in the backward all gradients, and all sums
            room = 2 * kv * d * p * run.context
            found.append(Blocks(2 * part.b * room, forward * room))
        else:
            room = wide * (kv * part.c + part.heads[part.rank] * run.context)
            found.append(Blocks(part.b * room, forward * room))
    return found


def context_elements(run: Asked, parts: Sequence[Part]) -> dict[str, tuple[str, list[float]]]:
    """For each phase a formula and, by rank, the elements for one layer: forward once, and backward."""
    kv, d, g = heads_and_depth(run)

    def each(formula: Sequence[Sequence[float]]) -> list[float]:
        return [part.b * of[part.rank] for part, of in zip(parts, formula, strict=True)]

    if run.attention == "ulysses":
        inward = each([context.positions_for_heads(part.of, part.heads, (g + 2) * d) for part in parts])
        outward = each([context.heads_for_positions(part.of, part.heads, g * d) for part in parts])
        back = each([context.positions_for_heads(part.of, part.heads, g * d) for part in parts])
        home = each([context.heads_for_positions(part.of, part.heads, (g + 2) * d) for part in parts])
        qkv, result = "(1+2g)sh(N-1)/N²", "sh(N-1)/N²"
        return {
            ALL_TO_ALL.format("before, forward"): (qkv, inward),
            ALL_TO_ALL.format("after, forward"): (result, outward),
            ALL_TO_ALL.format("after, backward"): (result, back),
            ALL_TO_ALL.format("before, backward"): (qkv, home),
        }
    passed = each([context.passed_on(part.of, kv * d) for part in parts])
    home = each([context.sent_home(part.of, kv * d) for part in parts])
    volume = "2gsh(N-1)/N"
    return {
        KEYS.format("forward"): (volume, passed),
        KEYS.format("backward"): (volume, passed),
        GRADIENTS: (volume, home),
    }
