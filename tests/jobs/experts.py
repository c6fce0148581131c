"""What tests/test_flats.py runs on ranks: a unit of which all ranks share a part, and every second rank another.

It is what experts will be, without their messages: rank r works on its rows with expert r mod 2. In serial training one
unit has both experts, and a mask says which rows are whose.
"""

from typing import Any

import numpy as np

from jobs import engines
from minidist.data_parallel import DataParallel
from minidist.engine import Engine, Settings
from minidist.nn import ops
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Batch, LayerNorm, Linear, Unit
from minidist.nn.optim import SGD
from minidist.nn.precision import PRECISIONS
from minidist.nn.tensor import Array, Tensor, record
from minidist.papers.collectives import chunk_sizes
from minidist.zero1 import ZeRO1
from minidist.zero2 import ZeRO2
from minidist.zero3 import ZeRO3

VOCABULARY, CONTEXT, WIDTH, BATCH, STEPS = 23, 5, 7, 11, 2
STAGES = {"data_parallel": DataParallel, "zero1": ZeRO1, "zero2": ZeRO2, "zero3": ZeRO3}


def masked(x: Tensor, mask: Array) -> Tensor:
    return record(x.data * mask, (x,), lambda dy, mask: dy * mask, keep_exact=(mask,))


class Experts(Unit):
    """x + the expert of each row, of the normed x. experts: those that are here."""

    def __init__(self, experts: list[int], ranks: int) -> None:
        self.name, self.here, self.ranks = "experts", experts, ranks
        self.norm = LayerNorm("experts.norm", WIDTH, bias=True)
        self.experts = [Linear(f"expert{i}", WIDTH, WIDTH, bias=True, std=0.5) for i in experts]
        for layer in self.experts:
            for parameter in layer.parameters:
                parameter.group = "apart"
        self.own([self.norm, *self.experts])

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        normed = self.norm(x)
        if len(self.experts) == 1:
            return ops.add(x, self.experts[0](normed))
        sizes = chunk_sizes(len(batch.tokens), self.ranks)
        expert_of = np.repeat(np.arange(self.ranks) % 2, sizes)  # (B,)
        for i, layer in enumerate(self.experts):
            x = ops.add(x, masked(layer(normed), (expert_of == i)[:, None, None].astype(x.data.dtype)))
        return x


def model(experts: list[int], ranks: int) -> list[Unit]:
    embedding, block, head = gpt(GPTConfig(VOCABULARY, CONTEXT, layers=1, heads=1, width=WIDTH))
    return [embedding, Experts(experts, ranks), block, head]


def settings(clip: float, accumulate: int) -> Settings:
    sgd = SGD(momentum=0.9)
    return Settings(PRECISIONS["fp64"], sgd, lambda update: 0.1, clip=clip, accumulate=accumulate, seed=3)


def train(engine: Engine) -> dict[str, Any]:
    rows = BATCH * engine.settings.accumulate
    return engines.follow(engine, [engines.batch(step, rows, CONTEXT, VOCABULARY) for step in range(STEPS)])


def train_all(comm: Any, cases: list[tuple[str, float, int]]) -> list[dict[str, Any]]:
    """Each case is (stage, clip, micro-batches)."""
    found = []
    for stage, clip, accumulate in cases:
        units = model([comm.rank % 2] if comm.size > 1 else [0, 1], comm.size)
        same_expert = comm.split(comm.rank % 2)
        if comm.size > 1:
            _, apart = units[1].flats
            apart.divide(same_expert)
        found.append(train(STAGES[stage](units, settings(clip, accumulate), comm)))
    return found
