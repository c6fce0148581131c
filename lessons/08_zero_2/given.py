"""What lesson 08's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidist.classroom.notebook.watch import watch
from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import SGD
from minidist.nn.precision import PRECISIONS
from minidist.papers import zero
from minidist.ring import all_gather, chunk

Array = np.ndarray
Parts = Sequence[tuple[Array, Array]]  # for each micro-batch this rank's rows, x and y


@dataclass
class Unit:
    param: Array
    grad: Array
    master: Array


def layer(flat: Array, h: Array) -> Array:
    width = h.shape[1]
    w, b = flat[: width * width].reshape(width, width), flat[width * width : width * width + width]
    return np.tanh(h @ w + b)


def forward(units: Sequence[Unit], x: Array) -> list[Array]:
    h = [x]
    for unit in units:
        h.append(layer(unit.param, h[-1]))
    return h


def layer_backward(flat: Array, h: Array, out: Array, dout: Array) -> tuple[Array, Array]:
    width = h.shape[1]
    dz = dout * (1 - out**2)
    gradient = np.concatenate([(h.T @ dz).reshape(-1), dz.sum(axis=0)])
    return gradient, dz @ flat[: width * width].reshape(width, width).T


def update_shard(comm: Comm, param: Array, master: Array, change: Array) -> None:
    master += change
    mine = param[chunk(param.size, comm.size, comm.rank)]
    mine[...] = master
    with comm.phase("all-gather parameters"):
        all_gather(comm, mine, param.size, out=param)


def start(layers: int, width: int, batch: int, n: int = 1, rank: int = 0) -> tuple[list[Unit], Array, Array]:
    """A rank's units, and a batch with its targets: the same wherever this is called."""
    random, units = np.random.default_rng(0), []
    for _ in range(layers):
        flat = random.standard_normal(width * width + width) / width**0.5
        param = np.append(flat, np.zeros(-flat.size % n))
        shard = np.split(param, n)[rank]
        units.append(Unit(param, np.zeros(shard.size), shard.copy()))
    x, y = random.standard_normal((2, batch, width))
    return units, x, np.tanh(y)


TOKENS = np.random.default_rng(0).integers(0, 64, (32, 17))  # 32 sequences of 16, and targets


def transformer() -> list[Any]:
    """The units of a small GPT, whose head is not tied."""
    return gpt(GPTConfig(vocabulary=64, context=16, layers=6, heads=4, width=64, tied=False))


def look(engine: Any, flat: Any) -> tuple[str, int, int]:
    """A unit, and the bytes of gradients that a rank holds: permanently, and in buckets."""
    for kind, array in (("parameters", flat.param), ("gradients", flat.grad), ("bucket", flat.bucket)):
        if array is not None:
            engine.device.hold(kind, array)
    return flat.name, engine.device.held["gradients"], engine.device.held["bucket"]


def step_of(make: Any, comm: Comm, micro_batches: int = 1) -> dict[str, Any]:
    """One step of the transformer with this engine.

    history: what `look` saw after each call of a method. memory: the most bytes at a time, by kind. after: the bytes
    held after the step. sent: the bytes sent, by phase. loss: this rank's part.
    """
    watched = watch(make, ("allocate", "collect", "reduce"), look)
    engine = watched(transformer(), Settings(accumulate=micro_batches), comm)
    engine.history.clear()
    comm.ledger.reset()
    loss = engine.train_batch(TOKENS[:, :-1], TOKENS[:, 1:])
    held = engine.device.held
    return {
        "history": [*engine.history, ("step", held["gradients"], held["bucket"])],
        "memory": engine.peak_bytes(),
        "after": sum(held[kind] for kind in ("parameters", "gradients", "optimizer", "bucket")),
        "sent": {phase: sent["bytes"] for phase, sent in engine.comm.ledger.by_phase().items() if phase != "norm"},
        "loss": loss,
    }


def train(make: Any, comm: Comm) -> list[float]:
    """This rank's part of the losses of seven steps, with SGD in float64, each of two micro-batches."""
    settings = Settings(PRECISIONS["fp64"], SGD(), lambda step: 0.3, clip=0, accumulate=2)
    engine = make(transformer(), settings, comm)
    return [engine.train_batch(TOKENS[:, :-1], TOKENS[:, 1:]) for _ in range(7)]


def claim_permanent(permanent: Mapping[str, Sequence[int]], padded: int, psi: int) -> None:
    """Rank 0 of 64 holds what the paper's formula says, and what its Figure 1 prints for 7.5 billion parameters."""
    for stage, states in enumerate(permanent.values(), start=1):
        promised = zero.model_states(padded, 64, stage)
        assert list(states) == [promised.parameters, promised.gradients, promised.optimizer]
        assert zero.FIGURE_1[stage].agrees(7.5 * sum(states) / psi)


def claim_toy(sent: Sequence[Mapping[int, Mapping[str, int]]], one_way: int) -> None:
    """Every rank sends the gradients once for each micro-batch, and the parameters once."""
    for of_rank in sent:
        for a, by_phase in of_rank.items():
            assert by_phase == {"reduce-scatter gradients": a * one_way, "all-gather parameters": one_way}


def claim_same_step(yours: Mapping[str, Any], chapters: Mapping[str, Any]) -> None:
    """Both hold and send the same, to the byte, and have the same loss."""
    for what in ("history", "after", "sent"):
        assert yours[what] == chapters[what]
    assert np.isclose(yours["loss"], chapters["loss"])
