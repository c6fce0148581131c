"""Exercise 14: three axes. Choose a layout in bytes; then make its groups, and let everything count once.

Fill in the eight functions; `pytest lessons/14_three_axes` says how many points they earn. Of `minidist.ring` you may
use everything. Axes are a dictionary from names to sizes, whose last one is the innermost: neighbours on it have
neighbouring numbers. {"data": 2, "pipeline": 2, "tensor": 2} are eight ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- first part: a layout in bytes -----------------------------------------------------------------------------------


class Model(NamedTuple):
    """A transformer, and the batch of a step. Micro-batches are of one sequence."""

    layers: int  # l
    width: int  # h
    heads: int  # a
    length: int  # s: tokens of a sequence
    batch: int  # B: sequences of a step, of all data-parallel ranks together
    parameters: int  # Ψ


class Layout(NamedTuple):
    """How many ranks there are along each axis."""

    data: int  # d
    pipeline: int  # p
    tensor: int  # t


class Cluster(NamedTuple):
    """What there is to run it on."""

    ranks: int
    per_host: int  # ranks of a host: the first so many are on host 0, and so on
    memory: float  # bytes that a rank may use
    speed: float  # operations a second, of a rank
    inside: float  # bytes a second that a rank sends to ranks of its host ...
    between: float  # ... and to others


def memory(model: Model, layout: Layout) -> float:
    """Bytes that a rank of the first stage holds: ψ = Ψ/pt parameters, and activations.

    Parameters and gradients 2 bytes each; the 12 bytes of optimizer state are divided over the data axis (ZeRO-1).
    Every layer keeps 34sh/t bytes for each micro-batch in flight. A rank has l/p layers and m = B/d micro-batches in
    a step; of these, min(p, m) are in flight (1F1B).
    """
    raise NotImplementedError


def sent(model: Model, layout: Layout) -> dict[str, float]:
    """Bytes that the busiest rank sends in a step, by axis: {"data": ..., "pipeline": ..., "tensor": ...}.

    Every number has 2 bytes. Around a ring of n an all-reduce of S numbers sends 2S(n-1)/n from each rank, its halves
    S(n-1)/n each.

    tensor     four all-reduces of sh numbers for each layer that the rank has and each micro-batch
    pipeline   sh/t numbers for each micro-batch to the stage behind, and as many to the stage before; the busiest
               rank has both, if there are more than two stages
    data       a reduce-scatter of ψ gradients, and an all-gather of ψ parameters
    """
    raise NotImplementedError


def seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Given: how long a step takes, if ranks do not compute while they send. It uses your `sent`.

    6 operations for each parameter and token; (p-1)/m of the time of the work is the pipeline's bubble.
    """
    d, p, t = layout
    work = 6 * model.parameters * model.batch * model.length / cluster.ranks / cluster.speed
    reach = {"tensor": t, "pipeline": p * t, "data": d * p * t}  # consecutive ranks among which a group lies
    sending = sum(
        nbytes / (cluster.inside if cluster.per_host % reach[axis] == 0 else cluster.between)
        for axis, nbytes in sent(model, layout).items()
    )
    return work * (1 + (p - 1) * d / model.batch) + sending


def choose(model: Model, cluster: Cluster) -> Layout | None:
    """The layout that takes the fewest `seconds` of those that use all ranks and fit; None if there is none.

    It fits if no rank needs more `memory` than it may use. Heads are divided over the tensor axis, layers over the
    pipeline and sequences over the data axis, each without a rest.
    """
    raise NotImplementedError


# ---- second part: the mesh -------------------------------------------------------------------------------------------


def place(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    """Where a rank stands on each axis, from 0; names in the order of `sizes`, whose last one is the innermost."""
    raise NotImplementedError


def along(comm: Comm, sizes: dict[str, int], axes: Sequence[str]) -> Comm:
    """The ranks that stand where this one stands on all axes but these; in the order of their rank in comm.

    All ranks of comm call it together. `comm.split(color)` puts those together that call it with the same integer.
    """
    raise NotImplementedError


# ---- third part: who sums what, and who counts what once -------------------------------------------------------------


@dataclass
class Piece:
    """A gradient that a rank holds, (S,)."""

    grad: Array
    cut: bool = True  # over the tensor axis: each rank has other numbers. Else all have the same, and the same gradient
    tied: bool = False  # the embedding's matrix, where the head uses it too: the first and the last stage have it


def shard_gradient(host: Comm, across: Comm, gradient: Array) -> Array:
    """Hybrid sharding: this rank's shard of the sum of everybody's gradient (S,), which does not change.

    host: the ranks of this host, who divide the model; shard r is theirs of rank r, as reduce_scatter cuts it
    across: the ranks that have the same shard, one on each host

    To ranks of other hosts a rank sends no more than the all-reduce of one shard.
    """
    raise NotImplementedError


def sum_gradients(pieces: Sequence[Piece], data: Comm, ends: Comm) -> None:
    """Let every `grad` be the gradient of the whole batch, in place. Losses have been divided by the size of the batch.

    data: the ranks that have the same piece, and have used it for other sequences
    ends: the first and the last stage; of a tied piece both have a copy, and each has used it in its own way
    """
    raise NotImplementedError


def gradient_norm(pieces: Sequence[Piece], tensor: Comm, pipeline: Comm) -> float:
    """The norm of the gradient of the whole model, on every rank, after sum_gradients: each parameter counts once.

    pieces are this rank's; tensor: the ranks of its stage, which have the other parts; pipeline: the stages, in order.
    """
    raise NotImplementedError
