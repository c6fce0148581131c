"""The micro-batches that are under way on one rank of a pipeline."""

from typing import Any

from minidist.nn.layers import Batch
from minidist.nn.tensor import Array

Passages = list[Any]  # of `passes.py`, which stands above


class InFlight:
    """For each micro-batch k its rows; by chunk, what a forward leaves for its backward; and messages."""

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self.left: dict[tuple[int, int], tuple[int, Passages]] = {}  # (k, chunk): the weights' version, passages
        self.mail: dict[tuple[str, int, int], Array] = {}  # (what, k, chunk)
        self.most = {"in_flight": 0, "with_activations": 0}  # at a time

    def leave(self, k: int, chunk: int, version: int, passages: Passages) -> None:
        """Keep what a forward leaves, and the version of the weights that it used."""
        self.left[k, chunk] = version, passages
        self.most["in_flight"] = max(self.most["in_flight"], len(self.left))

    def return_to(self, k: int, chunk: int) -> tuple[int, Passages]:
        """What the forward has left for the backward that runs now and needs its activations."""
        version, passages = self.left[k, chunk]
        others = sum(keeps_activations(other) for _, other in self.left.values() if other is not passages)
        self.most["with_activations"] = max(self.most["with_activations"], 1 + others)
        return version, passages

    def finish(self, k: int, chunk: int) -> Passages:
        """Take what the forward has left; its last use is for gradients of matrices. When no other chunk has anything
        left, the rows of the micro-batch are dropped: all forwards of a rank come before its first backward."""
        _, passages = self.left.pop((k, chunk))
        if not any(k == other for other, _ in self.left):
            del self.batches[k]
        return passages


def keeps_activations(passages: Passages) -> bool:
    """Whether more is kept than the inputs of recomputed segments."""
    return any(tape.nbytes for passage in passages for _, tape in passage.tapes)
