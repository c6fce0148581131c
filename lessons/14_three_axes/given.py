"""Lesson 14's own functions, which the notebook uses where a gap is open: look here after you have tried."""

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from minidist.engine import Engine, Settings
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import SGD
from minidist.nn.precision import PRECISIONS
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


# ---- the notebook's transformer on 2 x 2 x 2 ranks -------------------------------------------------------------------

SHAPE = {"vocabulary": 32, "context": 16, "layers": 2, "heads": 4, "width": 32, "tied": True}
TOKENS = np.random.default_rng(0).integers(0, 24, (32, 17))


def settings(micro: int) -> Settings:
    return Settings(PRECISIONS["fp64"], SGD(), learning_rate=lambda update: 0.3, clip=0.5, accumulate=micro)


def make_place(comm: Comm) -> tuple[Any, Any]:
    """The engine for this rank's place in a grid of 2 x 2 x 2, and the object that runs its pipeline."""
    from minidist.layout import Layout  # not above: it answers the exercise, and is hidden from graded programs
    from minidist.parallel3d import grid

    cuts = [range(2), range(2, 4)]  # units: embedding and a block; a block and the head
    layout = Layout(dp=2, pp=2, tp=2, micro_batches=2, parts=cuts)
    pipe: Any = grid(gpt(GPTConfig(**SHAPE)), settings(micro=2), comm, layout, zero=0)
    return pipe.engine, pipe


def train_grid(engine: Any, pipe: Any, steps: int = 6, batch: int = 8) -> tuple[list[float], list[float]]:
    """This rank's part of the loss, and the norm used for clipping, in each step; always the same batch."""
    losses, norms, squared_norm = [], list[float](), engine.squared_norm

    def noted() -> float:
        norms.append(math.sqrt(squared_norm()))
        return norms[-1] ** 2

    engine.squared_norm = noted
    for _ in range(steps):
        losses.append(pipe.train_batch(TOKENS[:batch, :-1], TOKENS[:batch, 1:]))
    engine.squared_norm = squared_norm
    return losses, norms


def train_serially() -> tuple[list[float], list[float]]:
    """The same in one process: losses and norms."""
    engine = Engine(gpt(GPTConfig(**SHAPE)), settings(1))

    def step(x: Array, y: Array) -> float:
        loss = engine.forward(x, y)
        engine.backward(loss)
        engine.step()
        return loss.value

    return train_grid(engine, SimpleNamespace(train_batch=step))


def add_losses(run: Sequence[tuple[list[float], list[float]]]) -> tuple[Array, list[float]]:
    """Losses, added up over the ranks, and norms, from what train_grid returned on each rank."""
    return np.sum([losses for losses, _ in run], axis=0), run[0][1]


def matrix_of(engine: Any) -> Array:
    """This rank's part of the embedding's matrix."""
    return next(flat.param.copy() for flat in engine.flats if flat.name == "embedding cut")


def count_axes(phases: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """The bytes that a rank sends in a step: for layers, between stages, for gradients."""
    return {
        "tensor": sum(phases[f"layers: all-reduce {way}"]["bytes"] for way in ("forward", "backward")),
        "pipeline": phases["activations"]["bytes"],
        "data": phases["all-reduce gradients"]["bytes"],
    }
