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
from collections.abc import Sequence
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
