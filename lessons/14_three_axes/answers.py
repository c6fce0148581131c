"""Lesson 14's own functions, which the notebook uses where a gap is open: look here after you have tried."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist.mpi.comm import Comm
from minidist.ring import all_reduce, reduce_scatter

Array = np.ndarray


# ---- the gaps --------------------------------------------------------------------------------------------------------


def place_of(rank: int, p: int, t: int) -> tuple[int, int, int]:
    return rank // (p * t), rank // t % p, rank % t


def color_of(rank: int, sizes: dict[str, int], axis: str) -> int:
    stride = 1
    for name in reversed(sizes):
        if name == axis:
            break
        stride *= sizes[name]
    return rank - rank // stride % sizes[axis] * stride


def two_levels(host: Comm, across: Comm, gradient: Array) -> Array:
    shard = reduce_scatter(host, gradient)
    return all_reduce(across, shard)


def my_squares(cut: Array, whole: Array, part: int) -> float:
    mine = float(np.sum(cut**2))
    return mine + float(np.sum(whole**2)) if part == 0 else mine


# ---- the exercise ----------------------------------------------------------------------------------------------------


def memory(model: Any, layout: Any) -> float:
    d, p, t = layout
    psi = model.parameters / (p * t)
    kept = 34 * model.length * model.width / t * (model.layers // p)
    return 4 * psi + 12 * psi / d + kept * min(p, model.batch // d)


def sent(model: Any, layout: Any) -> dict[str, float]:
    d, p, t = layout
    m, sh, psi = model.batch // d, model.length * model.width, model.parameters / (p * t)
    return {
        "data": 2 * 2 * psi * (d - 1) / d,
        "pipeline": 2 * m * sh / t * min(p - 1, 2),
        "tensor": 2 * m * (model.layers // p) * 4 * 2 * sh * (t - 1) / t,
    }


def seconds(model: Any, layout: Any, cluster: Any) -> float:
    d, p, t = layout
    work = 6 * model.parameters * model.batch * model.length / cluster.ranks / cluster.speed
    reach = {"tensor": t, "pipeline": p * t, "data": d * p * t}
    sending = sum(
        nbytes / (cluster.inside if cluster.per_host % reach[axis] == 0 else cluster.between)
        for axis, nbytes in sent(model, layout).items()
    )
    return work * (1 + (p - 1) * d / model.batch) + sending


def choose(model: Any, cluster: Any) -> Any:
    n = cluster.ranks
    sizes = [k for k in range(1, n + 1) if n % k == 0]
    layouts = [
        (n // (p * t), p, t)
        for p in sizes
        for t in sizes
        if n % (p * t) == 0
        and model.layers % p == model.heads % t == model.batch % (n // (p * t)) == 0
        and memory(model, (n // (p * t), p, t)) <= cluster.memory
    ]
    return min(layouts, key=lambda layout: seconds(model, layout, cluster), default=None)


def place(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    found = {}
    for axis in reversed(sizes):
        rank, found[axis] = divmod(rank, sizes[axis])
    return {axis: found[axis] for axis in sizes}


def along(comm: Comm, sizes: dict[str, int], axes: Sequence[str]) -> Comm:
    color = 0
    for axis, at in place(comm.rank, sizes).items():
        if axis not in axes:
            color = color * sizes[axis] + at
    return comm.split(color)


def shard_gradient(host: Comm, across: Comm, gradient: Array) -> Array:
    shard = reduce_scatter(host, gradient)
    return all_reduce(across, shard)


def sum_gradients(pieces: Sequence[Any], data: Comm, ends: Comm) -> None:
    for piece in pieces:
        all_reduce(data, piece.grad, piece.grad)
        if piece.tied:
            all_reduce(ends, piece.grad, piece.grad)


def gradient_norm(pieces: Sequence[Any], tensor: Comm, pipeline: Comm) -> float:
    total = np.zeros(1)
    for piece in pieces:
        if (piece.cut or tensor.rank == 0) and not (piece.tied and pipeline.rank > 0):
            total += np.sum(piece.grad**2)
    for ranks in (tensor, pipeline):
        total = all_reduce(ranks, total)
    return math.sqrt(total[0])
