"""What lesson 07's notebook starts from, runs and counts. The answers to its gaps are in answers.py."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minidist.engine import Settings
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import AdamW, squared_norm
from minidist.nn.precision import PRECISIONS
from minidist.papers import zero
from minidist.ring import chunk

Array = np.ndarray


def fill_gradients(units: Sequence[Any], x: Array, y: Array, batch: int) -> float:
    width, h = x.shape[1], [x]
    weights = [unit.param.astype(np.float32) for unit in units]  # W (width, width), then b (width)
    for w in weights:
        h.append(np.tanh(h[-1] @ w[: width**2].reshape(width, width) + w[width**2 : width**2 + width]))
    dh = (h[-1] - y) / np.float32(batch)
    for i in reversed(range(len(units))):
        dz = dh * (1 - h[i + 1] ** 2)
        gradient = np.concatenate([(h[i].T @ dz).reshape(-1), dz.sum(axis=0)])
        units[i].grad[: gradient.size] += gradient  # rounded to float16
        dh = dz @ weights[i][: width**2].reshape(width, width).T
    return float(((h[-1] - y) ** 2).sum() / 2 / batch)


LAYERS, WIDTH, BATCH = 4, 16, 10
SIZE = WIDTH * WIDTH + WIDTH  # numbers of a layer's Flat: W, then b


class Unit(NamedTuple):
    param: Array  # (padded,) float16: all parameters
    grad: Array  # (padded,) float16: the gradient; zeros between two steps
    master: Array  # float32: the part of the parameters that this rank updates


def start(comm: Comm, where: slice | None = None) -> tuple[list[Unit], Array, Array]:
    """A rank's units, and its rows of a batch with their targets; every rank draws the same numbers.

    where: this rank's shard of a padded Flat, the only part of the master copies that it gets. None: all, no padding.
    """
    random, units = np.random.default_rng(0), []
    padded = SIZE if where is None else comm.size * (where.stop - where.start)
    for _ in range(LAYERS):
        master = np.zeros(padded, np.float32)
        master[:SIZE] = random.standard_normal(SIZE) / WIDTH**0.5
        param = master.astype(np.float16)
        units.append(Unit(param, np.zeros_like(param), master[where or slice(None)].copy()))
    x, y = random.standard_normal((2, BATCH, WIDTH)).astype(np.float32)
    rows = chunk(BATCH, comm.size, comm.rank)
    return units, x[rows], np.tanh(y[rows])


def bytes_held(units: Sequence[Any], optimizer: Any) -> dict[str, int]:
    """The bytes of a rank's arrays, by kind."""
    moments = [moment for of_unit in optimizer.moments for moment in of_unit]
    return {
        "parameters": sum(unit.param.nbytes for unit in units),
        "gradients": sum(unit.grad.nbytes for unit in units),
        "optimizer": sum(array.nbytes for array in [*(unit.master for unit in units), *moments]),
    }


def all_equal(of_ranks: Sequence[Any]) -> bool:
    """Whether all ranks have returned the same arrays, to the last bit, in lists of any depth."""
    first = of_ranks[0]
    if isinstance(first, np.ndarray):
        return all(np.array_equal(first, other) for other in of_ranks)
    return all(all_equal(parts) for parts in zip(*of_ranks, strict=True))


def same_parameters(of_ranks: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Whether every rank has the same parameters as data parallelism, to the last bit, in every unit."""
    return all_equal([[unit[0] for unit in units] for units in (whole, *of_ranks)])


def ranks_agree(broken: Sequence[Any]) -> bool:
    """Whether all ranks end with the same parameters, with every optimizer and in every program."""
    return all_equal([[[run["params"] for run in runs.values()] for runs in of.values()] for of in broken])


Run = dict[str, Any]


def draw_batch(step: int) -> tuple[Array, Array]:
    """8 sequences of 16: each token is the previous one plus 3, with some noise; and their targets."""
    random = np.random.default_rng(step)
    tokens = random.integers(0, 32, (8, 1)) + 3 * np.arange(17)
    tokens += random.random((8, 17)) < 0.1
    return tokens[:, :-1] % 32, tokens[:, 1:] % 32


def transformer() -> list[Any]:
    """The units of a small GPT, whose head is tied."""
    return gpt(GPTConfig(vocabulary=32, context=16, layers=2, heads=2, width=32))


def six_blocks() -> list[Any]:
    """The units of a larger GPT. On up to 64 ranks none of them needs padding."""
    return gpt(GPTConfig(vocabulary=64, context=64, layers=6, heads=4, width=64))


def settings(optimizer: Any = None, rate: float = 1e-3, clip: float = 0.25) -> Settings:
    return Settings(PRECISIONS["fp64"], optimizer or AdamW(), lambda update: rate, clip=clip)


def train(make: Any, comm: Comm, steps: int = 6, **how: Any) -> Run:
    """Train the transformer on all ranks.

    Returns the losses of the batch, the most bytes that this rank held by kind, and the parameters at the end. For the
    first step also: the norm of the gradient that the update used, how far each Flat's parameters moved, and the bytes
    that this rank sent, by phase.
    """
    engine = make(transformer(), settings(**how), comm)
    before, losses, applied = [flat.param.copy() for flat in engine.flats], [], []
    update_all = engine.update_all

    def note_norm(scale: float) -> None:
        applied.append(scale**2 * sum(squared_norm(engine.owned(flat)[1]) for flat in engine.flats))
        update_all(scale)

    engine.update_all = note_norm
    comm.ledger.reset()
    for step in range(steps):
        losses.append(engine.train_batch(*draw_batch(step)))
        if step == 0:
            sent = {phase: counted["bytes"] for phase, counted in comm.ledger.by_phase().items()}
            pairs = zip(engine.flats, before, strict=True)
            moved = {flat.name: float(np.linalg.norm(flat.param - old)) for flat, old in pairs}
    memory = {kind: engine.peak_bytes()[kind] for kind in ("parameters", "gradients", "optimizer")}
    total = np.sum(comm.all_gather_object(losses), axis=0)
    norm = sum(comm.all_gather_object(applied[0])) ** 0.5
    kept = {"losses": total, "memory": memory, "params": [flat.param for flat in engine.flats]}
    return {**kept, "applied": norm, "moved": moved, "sent": sent}


def claim_shards(shards: Sequence[Any], whole: Sequence[Any]) -> None:
    """Each rank's master copies and moments are its part of data parallelism's, to the last bit."""
    from answers import shard_slice

    for rank, of_rank in enumerate(shards):
        for (_, *ours), (_, *theirs) in zip(of_rank, whole, strict=True):
            for mine, everything in zip(ours, theirs, strict=True):
                assert np.array_equal(mine, everything[shard_slice(everything.size, len(shards), rank)])


def claim_memory(by_n: Mapping[int, float]) -> None:
    """Bytes a parameter: the paper's formula for every number of ranks (no unit needs padding), its Figure 1 for 64."""
    for n, each in by_n.items():
        assert np.isclose(each, 4 + 12 / n, rtol=1e-12)
    assert zero.FIGURE_1[1].agrees(7.5 * (4 + 12 / 64))


def claim_tried(tried: Mapping[str, Run], alone: Any, losses: Sequence[float]) -> None:
    """One process's losses and parameters, clipped to the limit; Ψ(N-1)/N each way; a quarter of the optimizer."""
    size = sum(flat.size for flat in alone.flats)
    for run in tried.values():
        assert np.allclose(run["losses"], losses, rtol=1e-10, atol=0)
        assert np.isclose(run["applied"], 0.25, rtol=1e-10)
        assert run["sent"]["reduce-scatter gradients"] == run["sent"]["all-gather parameters"] == 8 * size * 3 // 4
        assert run["sent"]["norm"] <= 2 * 8 * 3
        assert run["memory"]["optimizer"] == alone.peak_bytes()["optimizer"] // 4
        for found, flat in zip(run["params"], alone.flats, strict=True):
            assert np.allclose(found, flat.param, rtol=0, atol=1e-9)
