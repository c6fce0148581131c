"""Exercise 14: three axes. Choose a layout by its bytes; then make its groups, and count each parameter once.

Fill in the eight functions; `pytest lessons/14_three_axes` says how many points they earn. You may use everything in
`minidist.ring`. Axes are a dictionary from names to sizes. Its last axis is the innermost: neighbors on it have
neighboring numbers. {"data": 2, "pipeline": 2, "tensor": 2} are eight ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minidist.mpi.comm import Comm

Array = np.ndarray


# ---- first part: a layout in bytes -----------------------------------------------------------------------------------


class Model(NamedTuple):
    """A transformer, and the batch of a step. A micro-batch is one sequence."""

    layers: int  # l
    width: int  # h
    heads: int  # a
    length: int  # s: tokens in a sequence
    batch: int  # B: sequences in a step, on all data-parallel ranks together
    parameters: int  # Ψ


class Layout(NamedTuple):
    """How many ranks there are along each axis."""

    data: int  # d
    pipeline: int  # p
    tensor: int  # t


class Cluster(NamedTuple):
    """The hardware."""

    ranks: int
    per_host: int  # ranks on a host: the first per_host ranks are on host 0, and so on
    memory: float  # bytes that a rank may use
    speed: float  # operations per second of a rank
    inside: float  # bytes per second that a rank sends to ranks of its host ...
    between: float  # ... and to others


def memory(model: Model, layout: Layout) -> float:
    """Bytes that a rank of the first stage holds: for ψ = Ψ/pt parameters, and for activations.

    Parameters and gradients take 2 bytes each; the 12 bytes of optimizer states are sharded over the data axis
    (ZeRO-1). Every layer keeps 34sh/t bytes for each micro-batch in flight. A rank has l/p layers and m = B/d
    micro-batches in a step; of these, min(p, m) are in flight (1F1B).
    """
    raise NotImplementedError


def sent(model: Model, layout: Layout) -> dict[str, float]:
    """Bytes that the busiest rank sends in a step, by axis: {"data": ..., "pipeline": ..., "tensor": ...}.

    Every number has 2 bytes. In an all-reduce of S numbers around a ring of n ranks, each rank sends 2S(n-1)/n. In a
    reduce-scatter or an all-gather it sends S(n-1)/n.

    tensor     four all-reduces of sh numbers for each of the rank's layers and each micro-batch
    pipeline   sh/t numbers for each micro-batch to the next stage, and as many to the previous one; the busiest
               rank has both, if there are more than two stages
    data       a reduce-scatter of ψ gradients, and an all-gather of ψ parameters
    """
    raise NotImplementedError


def seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Given: how long a step takes, if ranks do not compute while they send. It uses your `sent`.

    There are 6 operations for each parameter and token. The pipeline's bubble adds (p-1)/m of the time of the work.
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
    """The layout that takes the fewest `seconds` among those that use all ranks and fit; None if there is none.

    It fits if no rank needs more `memory` than it may use. Heads must divide evenly over the tensor axis, layers over
    the pipeline axis, and sequences over the data axis.
    """
    raise NotImplementedError


# ---- second part: the mesh -------------------------------------------------------------------------------------------


def place(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    """The rank's place on each axis, from 0; names in the order of `sizes`, where the last axis is the innermost."""
    raise NotImplementedError


def along(comm: Comm, sizes: dict[str, int], axes: Sequence[str]) -> Comm:
    """The ranks with the same place as this rank on all axes except these; in the order of their rank in comm.

    All ranks of comm call this function together. `comm.split(color)` groups the ranks that pass the same integer.
    """
    raise NotImplementedError


# ---- third part: sum over the right ranks, and count each parameter once ---------------------------------------------


@dataclass
class Piece:
    """A gradient that a rank holds, (S,)."""

    grad: Array
    cut: bool = (
        True  # over the tensor axis: each rank has a different part. Else all have the same numbers and gradient
    )
    tied: bool = False  # the embedding's matrix, which the head also uses: the first and the last stage have it


def shard_gradient(host: Comm, across: Comm, gradient: Array) -> Array:
    """Hybrid sharding: this rank's shard of the sum of all ranks' gradients (S,). Do not change `gradient`.

    host: the ranks of this host, which shard the model; rank r has shard r, as reduce_scatter cuts it
    across: the ranks that have the same shard, one on each host

    A rank sends no more to other hosts than in an all-reduce of one shard.
    """
    raise NotImplementedError


def sum_gradients(pieces: Sequence[Piece], data: Comm, ends: Comm) -> None:
    """Make every `grad` the gradient of the whole batch, in place. Losses were divided by the size of the whole batch.

    data: the ranks that have the same piece, and have used it for different sequences
    ends: the first and the last stage; both have a copy of a tied piece, and each has used it in its own way
    """
    raise NotImplementedError


def gradient_norm(pieces: Sequence[Piece], tensor: Comm, pipeline: Comm) -> float:
    """The norm of the gradient of the whole model, on every rank, after sum_gradients: each parameter counts once.

    pieces are this rank's; tensor: the ranks of its stage, which have the other parts; pipeline: the stages, in order.
    """
    raise NotImplementedError
