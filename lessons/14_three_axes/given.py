"""What lesson 14's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

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

Array = np.ndarray


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
