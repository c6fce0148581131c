"""Activation checkpointing: which layers keep what their backward needs, and which keep an input and run again.

Chen, Xu, Zhang & Guestrin, "Training deep nets with sublinear memory cost", 2016, arXiv 1604.06174: O(√n) memory for n
layers at the price of one more forward, O(log n) at that of O(n log n). Here as a division of layers into segments;
which engine runs them is not this file's affair.

    none        each layer keeps its activations until its backward
    selective   likewise, but for the core of attention, which each layer runs again (`nn/layers.py`: Attention)
    every:K     of K layers the first one's input is kept, and they run again together: n/K inputs, K layers at a time
    full        every:1
    sqrt        every:K with the K for which K + n/K is least: √n
    log         the first half keeps its input and runs again, itself in halves; the second half is halved at once
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

POLICIES = ("none", "selective", "full", "every:K", "sqrt", "log")


class Segment(NamedTuple):
    """One unit, which keeps its activations for the backward; or units that keep their input alone, and in the
    backward run again as the segments `within`. The last of these is one unit, whose own backward follows at once."""

    units: Sequence[Any]
    within: Sequence["Segment"] = ()


def divide(layers: Sequence[Any], policy: str) -> list[Segment]:
    """The segments of layers that follow one another."""
    if policy in ("none", "selective"):
        return [Segment([layer]) for layer in layers]
    if policy == "log":
        return halves(layers) if layers else []
    k = interval(policy, len(layers))
    return [together(layers[i : i + k]) for i in range(0, len(layers), k)]


def together(layers: Sequence[Any]) -> Segment:
    """When they run again, all of them keep their activations."""
    return Segment(layers, [Segment([layer]) for layer in layers])


def halves(layers: Sequence[Any]) -> list[Segment]:
    """A half, a quarter, an eighth ... that run again, and the last layer, whose backward comes first and which never
    does. At most ⌊log₂n⌋ inputs are kept, and one layer's activations."""
    middle = (len(layers) + 1) // 2
    if middle == len(layers):
        return [Segment(layers)]
    return [Segment(layers[:middle], halves(layers[:middle])), *halves(layers[middle:])]


def interval(policy: str, n: int) -> int:
    """How many of n layers run again together. √n, rounded, is one of the K for which least is held at once."""
    if policy == "sqrt":
        return max(round(math.sqrt(n)), 1)
    return 1 if policy == "full" else int(policy.removeprefix("every:"))


def again(segments: Sequence[Segment]) -> int:
    """How many layers' forwards the backward runs again."""
    return sum(len(segment.units) + again(segment.within) for segment in segments if segment.within)


# ---- the order in which units run ------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """Of a unit, in a pass."""

    unit: Any
    what: str  # it runs forward, backward, or again: forward once more for a backward
    cost: int  # its forward being 1


def way_back(segment: Segment) -> list[Turn]:
    """Whose turn it is in a segment's backward. If it runs again, its last unit does so right before its backward."""
    if not segment.within:
        return [Turn(unit, "backward", 2) for unit in segment.units]
    *before, last = segment.within
    again = [Turn(unit, "again", 1) for unit in segment.units[:-1]]
    back = [turn for inner in reversed(before) for turn in way_back(inner)]
    return [*again, Turn(last.units[0], "backward", 3), *back]


def list_gathers(turns: Iterable[Turn]) -> Iterator[Any]:
    """What is gathered in a pass, in order: once for all that reads it, and for what runs again once more."""
    here: set[Any] = set()
    for turn in turns:
        for flat in turn.unit.reads:
            if turn.what == "again" or flat not in here:
                yield flat
            if turn.what != "again":
                here.add(flat)
