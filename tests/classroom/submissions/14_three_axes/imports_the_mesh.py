"""Uses the package's own mesh."""
# keeps: nothing
# says: minidist.layout is not here: it has what this lesson asks you to write

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minidist import layout
from minidist.mpi.comm import Comm
from minidist.ring import all_gather, all_reduce, reduce_scatter

Array = np.ndarray


class Model(NamedTuple):
    layers: int
    width: int
    heads: int
    length: int
    batch: int
    parameters: int


class Layout(NamedTuple):
    data: int
    pipeline: int
    tensor: int


class Cluster(NamedTuple):
    ranks: int
    per_host: int
    memory: float
    speed: float
    inside: float
    between: float


def memory(model: Model, layout: Layout) -> float:
    d, p, t = layout
    psi = model.parameters / (p * t)
    states = (2 + 2) * psi + 12 * psi / d
    in_flight = min(p, model.batch // d)
    return states + in_flight * model.layers / p * 34 * model.length * model.width / t


def sent(model: Model, layout: Layout) -> dict[str, float]:
    d, p, t = layout
    micro_batches = model.batch // d
    sh = model.length * model.width
    psi = model.parameters / p / t
    neighbours = {1: 0, 2: 1}.get(p, 2)
    all_reduces = 4 * micro_batches * model.layers / p
    return {
        "data": 2 * 2 * psi * (d - 1) / d,
        "pipeline": 2 * neighbours * micro_batches * sh / t,
        "tensor": 2 * all_reduces * 2 * sh * (t - 1) / t,
    }


def seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    d, p, t = layout
    work = 6 * model.parameters * model.batch * model.length / cluster.ranks / cluster.speed
    reach = {"tensor": t, "pipeline": p * t, "data": d * p * t}
    sending = sum(
        nbytes / (cluster.inside if cluster.per_host % reach[axis] == 0 else cluster.between)
        for axis, nbytes in sent(model, layout).items()
    )
    return work * (1 + (p - 1) * d / model.batch) + sending


def choose(model: Model, cluster: Cluster) -> Layout | None:
    best = None
    for p in range(1, model.layers + 1):
        for t in range(1, model.heads + 1):
            if cluster.ranks % (p * t):
                continue
            layout = Layout(cluster.ranks // (p * t), p, t)
            if model.batch % layout.data or model.layers % p or model.heads % t:
                continue
            if memory(model, layout) > cluster.memory:
                continue
            if best is None or seconds(model, layout, cluster) < seconds(model, best, cluster):
                best = layout
    return best


def place(rank, sizes):
    return layout.Layout(*sizes).place(rank)


def along(comm: Comm, sizes: dict[str, int], axes: Sequence[str]) -> Comm:
    mine = place(comm.rank, sizes)
    others = [axis for axis in sizes if axis not in axes]
    color = 0
    for axis in others:
        color = color * sizes[axis] + mine[axis]
    return comm.split(color)


@dataclass
class Piece:
    grad: Array
    cut: bool = True
    tied: bool = False


def shard_gradient(host: Comm, across: Comm, gradient: Array) -> Array:
    shard = reduce_scatter(host, gradient)
    return all_reduce(across, shard)


def sum_gradients(pieces: Sequence[Piece], data: Comm, ends: Comm) -> None:
    for piece in pieces:
        piece.grad[:] = all_reduce(data, piece.grad)
        if piece.tied:
            piece.grad[:] = all_reduce(ends, piece.grad)


def gradient_norm(pieces: Sequence[Piece], tensor: Comm, pipeline: Comm) -> float:
    squares = 0.0
    for piece in pieces:
        counted = piece.cut or tensor.rank == 0
        if piece.tied and pipeline.rank > 0:
            counted = False
        if counted:
            squares += float((piece.grad**2).sum())
    for comm in (tensor, pipeline):
        squares = float(all_gather(comm, np.array([squares]), comm.size).sum())
    return math.sqrt(squares)
