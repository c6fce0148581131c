"""Compressed sums against plain ones: what is sent, and what is left, are all that there was."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.engines import CONTEXT, VOCABULARY, settings
from minidist import UsageError
from minidist.checkpoints import checkpoint
from minidist.compression import Compressed, Compressor, LowRank, OneBitAdam, sum_largest, sum_signs
from minidist.exchange.one_process import run_ranks
from minidist.local_sgd import LocalSGD
from minidist.mpi.comm import Comm
from minidist.nn.flat import Flat
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.optim import SGD
from minidist.nn.tensor import Parameter
from minidist.papers import compression as paper

COMPRESSORS: dict[str, Callable[[], Compressor]] = {
    "sign": lambda: sum_signs,
    "topk": lambda: partial(sum_largest, density=0.07),
    "lowrank": lambda: LowRank(2, 0).sum,
}


def flat_of(comm: Comm, *shapes: tuple[int, ...]) -> Flat:
    made = Flat("unit", [Parameter(f"p{i}", shape) for i, shape in enumerate(shapes)])
    made.divide(comm)
    return made


def drawn(flat: Flat, *key: int) -> np.ndarray:
    """Values of a Flat (padded,), another for each key; zeros after its size."""
    x = np.zeros(flat.padded)
    x[: flat.size] = np.random.default_rng(key).standard_normal(flat.size)
    return x


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_the_sum_is_what_all_ranks_have_sent(name: str, n: int) -> None:
    """Element by element, at sizes that no number of ranks divides: so what is left of x is x - sent, and all that is
    ever sent, and left, is all that was put in."""

    def be_rank(comm: Comm) -> tuple[np.ndarray, np.ndarray]:
        flat = flat_of(comm, (5, 7), (3,), (4, 2, 3))
        return COMPRESSORS[name]()(comm, flat, drawn(flat, comm.rank))

    found = run_ranks(be_rank, n)
    for total, _ in found:
        np.testing.assert_allclose(total, sum(sent for _, sent in found), atol=1e-13)
        assert np.array_equal(total, found[0][0])


def test_signs_keep_the_norm() -> None:
    def be_rank(comm: Comm) -> None:
        flat = flat_of(comm, (6, 5))
        x = drawn(flat, 1)
        total, _ = sum_signs(comm, flat, x)
        assert np.array_equal(np.sign(total), np.sign(x))
        np.testing.assert_allclose(np.linalg.norm(total), np.linalg.norm(x))

    run_ranks(be_rank, 1)


@pytest.mark.parametrize("n", [2, 4])
def test_signs_take_a_sixteenth_of_a_ring_of_float16(n: int) -> None:
    """Exactly, where each chunk is a whole number of bytes. Scales are counted apart."""

    def be_rank(comm: Comm) -> tuple[int, int]:
        flat = flat_of(comm, (32, 8 * n))
        sum_signs(comm, flat, drawn(flat, comm.rank).astype(np.float32))
        ever = comm.ledger.ever().items()
        sent = {
            phase: sum(n for (_, of, *_, unit), n in ever if (of, unit) == (phase, "bytes"))
            for phase in ("signs", "scales")
        }
        return sent["signs"], sent["scales"]

    for signs, scales in run_ranks(be_rank, n):
        assert 16 * signs == 2 * 2 * 32 * 8 * (n - 1)  # a ring of float16
        assert scales == 8 * (n - 1)


def test_the_largest_are_summed_at_their_places() -> None:
    def be_rank(comm: Comm) -> np.ndarray:
        flat = flat_of(comm, (50,))
        x = drawn(flat, comm.rank)
        x[[7, 8 + comm.rank]] = 100.0, -50.0
        total, _ = sum_largest(comm, flat, x, 2 / 50)
        assert comm.ledger.by_phase() == {"largest": {"bytes": 2 * 2 * (4 + 8), "messages": 2}}
        return total

    for total in run_ranks(be_rank, 3):
        assert np.flatnonzero(total).tolist() == [7, 8, 9, 10]
        assert total[7:11].tolist() == [300.0, -50.0, -50.0, -50.0]


def test_a_sum_of_low_rank_is_found_exactly() -> None:
    """If the ranks' matrices add up to rank 2, one step of power iteration from any Q finds it."""
    left, right = np.random.default_rng(0).standard_normal((2, 9, 2))

    def be_rank(comm: Comm) -> np.ndarray:
        flat = flat_of(comm, (9, 9))
        x = drawn(flat, comm.rank)
        if comm.rank == 2:  # so that the three add up
            x = (left @ right.T).ravel() - drawn(flat, 0) - drawn(flat, 1)
        return LowRank(2, 0).sum(comm, flat, x)[0]

    for total in run_ranks(be_rank, 3):
        np.testing.assert_allclose(total.reshape(9, 9), left @ right.T, atol=1e-10)


def test_q_turns_towards_the_largest_directions() -> None:
    """Asked again with the same matrix, PowerSGD goes on with its power iteration: towards the best of rank 2, by
    singular values."""

    def be_rank(comm: Comm) -> tuple[float, float]:
        flat, low_rank = flat_of(comm, (12, 10)), LowRank(2, 0)
        x = drawn(flat, comm.rank)
        u, s, v = np.linalg.svd(x.reshape(12, 10))
        best = float(np.linalg.norm(x - ((u[:, :2] * s[:2]) @ v[:2]).ravel()))
        off = [float(np.linalg.norm(x - low_rank.sum(comm, flat, x)[0])) for _ in range(200)]
        return off[0] - best, off[-1] - best

    [(first, last)] = run_ranks(be_rank, 1)
    assert first > 0.1 > 1e-6 > last > -1e-12


@pytest.mark.parametrize(("r", "figures"), [(1, 2), (2, 2), (4, 2)])
def test_the_papers_resnet_on_two_ranks(r: int, figures: int) -> None:
    """Two ranks send as many elements as the sum has. PowerSGD's table 3 counts these, for an epoch."""

    def be_rank(comm: Comm) -> int:
        for shape in paper.resnet18():
            flat = flat_of(comm, shape)
            LowRank(r, 0).sum(comm, flat, np.ones(flat.padded, np.float32))
        return sum(nbytes for (*_, unit), nbytes in comm.ledger.ever().items() if unit == "bytes")

    for nbytes in run_ranks(be_rank, 2):
        assert paper.EPOCH[r].agrees(paper.mebibytes(nbytes / 4))
        assert paper.LESS[r].agrees(paper.ELEMENTS / (nbytes / 4))


def test_adam_before_and_after_its_variance_is_frozen() -> None:
    """By hand: m ← β₁m + (1-β₁)g, v ← β₂v + (1-β₂)g², θ ← (1-ηλ)θ - ηm/(√v + ε). Frozen: v stays, m is what is given,
    and an element whose variance says nothing takes no step."""
    adam = OneBitAdam(beta1=0.5, beta2=0.75, eps=0.1, weight_decay=0.2)
    param, m, v = np.array([1.0, 2.0]), np.zeros(2), np.zeros(2)
    adam.update(param, np.array([8.0, 0.0]), [m, v], scale=0.5, lr=0.5, step=1, decayed=1)
    assert (m.tolist(), v.tolist()) == ([2.0, 0.0], [4.0, 0.0])
    np.testing.assert_allclose(param, [0.9 - 0.5 * 2 / 2.1, 2.0])
    adam.update_frozen(param, np.array([3.0, 5.0]), [m, v], 0.5, 0)
    assert (m.tolist(), v.tolist()) == ([3.0, 0.0], [4.0, 0.0])
    np.testing.assert_allclose(param, [0.9 - 0.5 * 2 / 2.1 - 0.5 * 3 / 2.1, 2.0])


# ---- saved and resumed -----------------------------------------------------------------------------------------------


def engine(name: str, comm: Comm) -> Compressed:
    units = gpt(GPTConfig(VOCABULARY, CONTEXT, layers=1, heads=3, width=15, dropout=0.0))
    how: Any = OneBitAdam() if name == "sign" else SGD()
    plain = replace(settings("fp64", "sgd", 1, clip=0.5), optimizer=how)
    return Compressed(units, plain, comm, COMPRESSORS[name](), 1 if name == "sign" else 0, 0.9 * (name == "topk"))


def trained(engine: Compressed, steps: int) -> list[np.ndarray]:
    for _ in range(steps):
        tokens = np.random.default_rng(engine.steps).integers(0, VOCABULARY, (6, CONTEXT + 1))
        engine.train_batch(tokens[:, :-1], tokens[:, 1:])
    return [flat.master.copy() for flat in engine.flats]


ABOUT = {"layout": {"chapter": "compression", "ranks": 3}, "identity": {}, "text": {}}


@pytest.mark.parametrize("name", ["sign", "topk"])
def test_each_rank_resumes_with_its_own_error(name: str, tmp_path: Path) -> None:
    """To the last bit."""

    def be_rank(comm: Comm) -> list[bool]:
        first, resumed = engine(name, comm), engine(name, comm)
        trained(first, 3)
        checkpoint.save(str(tmp_path), first, comm, ABOUT)
        checkpoint.load(str(tmp_path), resumed)
        assert all(flat.own["error"].any() for flat in resumed.flats)
        return [np.array_equal(*pair) for pair in zip(trained(first, 2), trained(resumed, 2), strict=True)]

    assert all(map(all, run_ranks(be_rank, 3)))


def test_on_other_ranks_a_line_says_how_many_it_takes(tmp_path: Path) -> None:
    def saves(comm: Comm) -> None:
        checkpoint.save(str(tmp_path), engine("topk", comm), comm, ABOUT)

    def loads(comm: Comm) -> None:
        with pytest.raises(UsageError, match="was saved on 3 ranks, each with its own error and velocity"):
            checkpoint.load(str(tmp_path), engine("topk", comm))

    def another(comm: Comm) -> None:
        with pytest.raises(
            UsageError, match=r"has no error.0, error.1, velocity.0, velocity.1: it was saved by another"
        ):
            checkpoint.load(str(tmp_path / "sgd"), engine("topk", comm))

    def averages(comm: Comm) -> None:  # each rank has moments of its own, and no error
        units = gpt(GPTConfig(VOCABULARY, CONTEXT, layers=1, heads=3, width=15, dropout=0.0))
        checkpoint.save(
            str(tmp_path / "sgd"), LocalSGD(units, settings("fp64", "adamw", 1, clip=0.5), comm, 1), comm, ABOUT
        )

    run_ranks(saves, 3)
    run_ranks(loads, 2)
    run_ranks(averages, 3)
    run_ranks(another, 2)
