"""Activation checkpointing: which layers keep what their backward needs, and which keep an input and are recomputed.

Chen, Xu, Zhang & Guestrin, "Training deep nets with sublinear memory cost", 2016, arXiv 1604.06174: O(√n) memory for n
layers costs one more forward; O(log n) memory costs O(n log n) forwards of layers. This file divides layers
into segments; any engine can run them.

    none        each layer keeps its activations until its backward
    selective   likewise, except the core of attention, which each layer recomputes (`nn/layers.py`: Attention)
    every:K     only the first input of K layers is kept, and they are recomputed together: n/K inputs, K layers
    full        every:1
    sqrt        every:K with the K for which K + n/K is least: √n
    log         the first half keeps its input and is recomputed, halved likewise; the second half is halved at once
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

POLICIES = ("none", "selective", "full", "every:K", "sqrt", "log")


class Segment(NamedTuple):
    """One unit, which keeps its activations for the backward; or several, which keep only the first one's input, and
    are recomputed in the backward as the segments `within`. The last of these is one unit: its backward follows at
    once."""

    units: Sequence[Any]
    within: Sequence["Segment"] = ()


def divide(layers: Sequence[Any], policy: str) -> list[Segment]:
    """The segments of consecutive layers."""
    if policy in ("none", "selective"):
        return [Segment([layer]) for layer in layers]
    if policy == "log":
        return halves(layers) if layers else []
    k = interval(policy, len(layers))
    return [together(layers[i : i + k]) for i in range(0, len(layers), k)]


def together(layers: Sequence[Any]) -> Segment:
    """A segment of layers that all keep their activations when they are recomputed."""
    return Segment(layers, [Segment([layer]) for layer in layers])


def halves(layers: Sequence[Any]) -> list[Segment]:
    """A half, a quarter, an eighth ... that are recomputed, and the last layer, which never is: its backward comes
    first. At most ⌊log₂n⌋ inputs are kept, and one layer's activations."""
    middle = (len(layers) + 1) // 2
    if middle == len(layers):
        return [Segment(layers)]
    return [Segment(layers[:middle], halves(layers[:middle])), *halves(layers[middle:])]


def interval(policy: str, n: int) -> int:
    """How many of n layers are recomputed together. √n, rounded, is one of the K with the smallest peak."""
    if policy == "sqrt":
        return max(round(math.sqrt(n)), 1)
    return 1 if policy == "full" else int(policy.removeprefix("every:"))


def again(segments: Sequence[Segment]) -> int:
    """The number of layer forwards that the backward recomputes."""
    return sum(len(segment.units) + again(segment.within) for segment in segments if segment.within)


# ---- the order in which units run ------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """One run of a unit in a pass."""

    unit: Any
    what: str  # "forward", "backward", or "again": forward once more for a backward
    cost: int  # a forward costs 1


def way_back(segment: Segment) -> list[Turn]:
    """The runs of a segment's backward, in order. A recomputed segment's last unit runs right before its backward."""
    if not segment.within:
        return [Turn(unit, "backward", 2) for unit in segment.units]
    *before, last = segment.within
    again = [Turn(unit, "again", 1) for unit in segment.units[:-1]]
    back = [turn for inner in reversed(before) for turn in way_back(inner)]
    return [*again, Turn(last.units[0], "backward", 3), *back]


def list_gathers(turns: Iterable[Turn]) -> Iterator[Any]:
    """The Flats that a pass gathers, in order: each once for all its readers, and once more for each recomputation."""
    here: set[Any] = set()
    for turn in turns:
        for flat in turn.unit.reads:
            if turn.what == "again" or flat not in here:
                yield flat
            if turn.what != "again":
                here.add(flat)
