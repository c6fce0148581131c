"""Local SGD: alone, each rank is a serial training on its own rows; together, the ranks are those trainings' mean."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import status_of
from jobs.engines import CONTEXT, VOCABULARY, settings
from minidist import UsageError
from minidist.checkpoints import checkpoint
from minidist.data_parallel import DataParallel
from minidist.engine import Engine
from minidist.exchange.one_process import run_ranks
from minidist.local_sgd import LocalSGD
from minidist.mpi.comm import Comm
from minidist.nn.gpt import GPTConfig, gpt
from minidist.nn.layers import Unit
from minidist.nn.optim import SGD
from minidist.programs.chapter import find
from tables import table

# Whose ranks differ in nothing after an averaging.
PLAIN = replace(settings("fp64", "sgd", 1, clip=0.5), optimizer=SGD())


def model() -> list[Unit]:
    """Without dropout, whose masks depend on a row's number in the whole batch."""
    return gpt(GPTConfig(VOCABULARY, CONTEXT, layers=1, heads=3, width=15, dropout=0.0))


def trained(engine: Engine, steps: int, rows: Any = slice(None)) -> dict[str, np.ndarray]:
    """Parameters after some more steps on these of 6 sequences."""
    for _ in range(steps):
        tokens = np.random.default_rng(engine.steps).integers(0, VOCABULARY, (6, CONTEXT + 1))[rows]
        engine.train_batch(tokens[:, :-1], tokens[:, 1:])
    engine.settle()
    return {flat.name: flat.master[: flat.size].copy() for flat in engine.flats}


@pytest.mark.parametrize(("n", "accumulate"), [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize(("lr", "momentum"), [(1.0, 0.0), (0.7, 0.9)])
def test_two_steps_alone_then_together_three_times(n: int, accumulate: int, lr: float, momentum: float) -> None:
    """θ ← θ - η (Δ + μ v), v ← μ v + Δ by hand, where Δ is θ less the mean of serial trainings on each rank's rows. The
    last time the ranks meet after one step, because it is the last of all."""
    serial, divided = settings("fp64", "sgd", 1, clip=0.5), settings("fp64", "sgd", accumulate, clip=0.5)

    def be_rank(comm: Comm) -> list[dict[str, np.ndarray]]:
        engine = LocalSGD(model(), divided, comm, 2, lr, momentum)
        return [trained(engine, steps) for steps in (2, 2, 1)]

    alone = [Engine(model(), serial) for _ in range(n)]
    rows = np.arange(6).reshape(accumulate, n, -1)  # of a micro-batch, of a rank
    theta = trained(alone[0], 0)
    v = {name: 0 * array for name, array in theta.items()}
    for steps, ranks in zip((2, 2, 1), zip(*run_ranks(be_rank, n), strict=True), strict=True):
        for flat in (flat for engine in alone for flat in engine.flats):
            flat.master[: flat.size] = theta[flat.name]
        own = [trained(engine, steps, rows[:, rank].ravel()) for rank, engine in enumerate(alone)]
        for name in theta:
            delta = theta[name] - np.mean([each[name] for each in own], axis=0)
            v[name] = momentum * v[name] + delta
            theta[name] = theta[name] - lr * (delta + momentum * v[name])
            for rank in ranks:
                np.testing.assert_allclose(rank[name], theta[name], rtol=1e-9, atol=1e-12)
                assert np.array_equal(rank[name], ranks[0][name])


@pytest.mark.parametrize("n", [2, 3])
def test_without_steps_alone_it_is_data_parallelism(n: int) -> None:
    """With SGD and equal shares: the mean of θ - ηgᵣ is θ less η times the mean gradient."""
    plain = replace(settings("fp64", "sgd", 1, clip=0.0), optimizer=SGD())
    local = run_ranks(lambda comm: trained(LocalSGD(model(), plain, comm, 1), 4), n)
    for ours, theirs in zip(
        local, run_ranks(lambda comm: trained(DataParallel(model(), plain, comm), 4), n), strict=True
    ):
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-14)


def test_intervals_are_compared_on_the_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At each H as often as H fits into the steps; a rank sends 2(N-1)/N of the parameters each time."""
    report = tmp_path / "sweep.json"
    line = f"local_sgd --sweep --steps 20 --layers 1 --width 8 --heads 2 --context 8 --validate 1 --json {report}"
    assert status_of(line, 2) == 0
    found = json.loads(report.read_text())
    assert {every: sent / found["sent"]["50"] for every, sent in found["sent"].items()} == {
        "1": 20, "2": 10, "5": 4, "10": 2, "50": 1
    }  # fmt: skip
    assert len({*found["loss"].values()}) == 5
    assert "500 times fewer averagings are 250 times fewer bytes" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("line", "words"), table(__file__, "what_makes_no_sense_is_refused"))
def test_what_makes_no_sense_is_refused(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find("local_sgd").job(line.split(), 2)


def test_each_rank_resumes_with_its_own_moments(tmp_path: Path) -> None:
    """To the last bit, after an averaging; on another number of ranks a line says what it takes."""
    adam = settings("fp64", "adamw", 1, clip=0.5)
    about = {"layout": {"chapter": "local_sgd", "ranks": 2}, "identity": {}, "text": {}}

    def be_rank(comm: Comm) -> list[bool]:
        engine, resumed = (LocalSGD(model(), adam, comm, 2) for _ in range(2))
        trained(engine, 4)
        checkpoint.save(str(tmp_path), engine, comm, about)
        checkpoint.load(str(tmp_path), resumed)
        found = [trained(each, 4) for each in (engine, resumed)]
        return [np.array_equal(array, found[1][name]) for name, array in found[0].items()]

    def another(comm: Comm) -> None:
        with pytest.raises(UsageError, match="was saved on 2 ranks, each with its own moment1 and moment2"):
            checkpoint.load(str(tmp_path), LocalSGD(model(), adam, comm, 2))

    assert all(map(all, run_ranks(be_rank, 2)))
    run_ranks(another, 3)


def test_the_outer_optimizer_is_saved_and_resumed_by_name(tmp_path: Path) -> None:
    """A run that resumes where the ranks have just met goes on to the last bit."""
    about = {"layout": {"chapter": "local_sgd", "ranks": 2}, "identity": {}, "text": {}}

    def be_rank(comm: Comm) -> list[bool]:
        engine, resumed = (LocalSGD(model(), PLAIN, comm, 2, 0.7, 0.9) for _ in range(2))
        trained(engine, 4)
        checkpoint.save(str(tmp_path), engine, comm, about)
        checkpoint.load(str(tmp_path), resumed)
        assert all(flat.added["velocity"].any() for flat in resumed.flats)
        found = [trained(each, 4) for each in (engine, resumed)]
        return [np.array_equal(array, found[1][name]) for name, array in found[0].items()]

    assert all(map(all, run_ranks(be_rank, 2)))


def test_a_checkpoint_without_what_the_engine_adds_is_refused(tmp_path: Path) -> None:
    about = {"layout": {"chapter": "local_sgd", "ranks": 1}, "identity": {}, "text": {}}

    def be_rank(comm: Comm) -> None:
        checkpoint.save(str(tmp_path), LocalSGD(model(), PLAIN, comm, 2), comm, about)
        with pytest.raises(UsageError, match="has no outer, velocity: it was saved by another chapter"):
            checkpoint.load(str(tmp_path), LocalSGD(model(), PLAIN, comm, 2, 0.7, 0.9))

    run_ranks(be_rank, 1)
