"""Muon's update against singular values, and its divided state against one rank's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.engines import CONTEXT, VOCABULARY, settings
from minidist.checkpoints import checkpoint
from minidist.claims.reports import count_here
from minidist.exchange.one_process import run_ranks
from minidist.mpi.comm import Comm
from minidist.muon import Muon, WholeMatrices, orthogonalized, placed
from minidist.nn.gpt import GPTConfig, gpt
from minidist.papers import muon as paper


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 8), (9, 4), (40, 64)])
def test_singular_values_come_near_one_and_their_vectors_stay(shape: tuple[int, int]) -> None:
    """Between 0.7 and 1.2 from the fifth part of the largest on, as Jordan plots it; the sum of all is what counts."""
    m = np.random.default_rng(0).standard_normal(shape) * 1e-3
    u, s, vt = np.linalg.svd(m, full_matrices=False)
    turned = u.T @ orthogonalized(m) @ vt.T  # diagonal, if the vectors are the same
    found = np.diag(turned)
    np.testing.assert_allclose(turned, np.diag(found), atol=1e-9)
    assert all(0.65 < value < 1.25 for value, of in zip(found, s, strict=True) if of > 0.2 * s[0])


def test_a_matrix_goes_to_the_rank_that_has_least() -> None:
    assert placed([4, 9, 4, 3, 1], 2) == [1, 0, 1, 1, 0]
    assert paper.shares([4, 9, 4, 3, 1], 2) == [10, 11]
    assert [paper.padding(24, n) for n in (8, 16, 64)] == [
        1.0,
        pytest.approx(1.33, abs=0.01),
        pytest.approx(2.67, abs=0.01),
    ]


def trained(comm: Comm, divide: str, steps: int, start: str = "", save: str = "") -> Any:
    """Parameters by name after some steps; from a checkpoint, and into one."""
    units = gpt(GPTConfig(VOCABULARY, CONTEXT, layers=1, heads=3, width=15, dropout=0.0))
    kind = Muon if divide == "elements" else WholeMatrices
    engine = kind(units, settings("fp64", "adamw", 2, clip=0.5), comm)
    if start:
        checkpoint.load(start, engine)
    for _ in range(steps):
        tokens = np.random.default_rng(engine.steps).integers(0, VOCABULARY, (12, CONTEXT + 1))
        engine.train_batch(tokens[:, :-1], tokens[:, 1:])
    if save:
        about = {"layout": {"chapter": "muon", "ranks": comm.size}, "identity": {}, "text": {}}
        checkpoint.save(save, engine, comm, about)
    found: dict[str, np.ndarray] = {}
    for flat in engine.flats:
        found |= engine.whole_parameters(flat, flat.master)
    return found


@pytest.mark.parametrize("divide", ["matrices", "elements"])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_any_ranks_train_as_one_does_also_from_a_checkpoint_of_other_ranks(n: int, divide: str, tmp_path: Path) -> None:
    """With two micro-batches, of which a sum is orthogonalized, once."""
    other = {"matrices": "elements", "elements": "matrices"}[divide]
    [alone] = run_ranks(lambda comm: trained(comm, divide, 4), 1)
    run_ranks(lambda comm: trained(comm, divide, 2, save=str(tmp_path)), n)
    for found in run_ranks(lambda comm: trained(comm, other, 2, start=str(tmp_path)), n - 1):
        for name, array in alone.items():
            np.testing.assert_allclose(found[name], array, atol=1e-11, err_msg=name)


def test_matrices_that_are_gathered_send_a_quarter_more_than_adam() -> None:
    """Moonlight's 1.25, counted on the blocks' matrices in float32; whole matrices send nothing more."""
    line = "muon --divide {} --steps 1 --layers 4 --width 32 --heads 2 --context 8 --precision fp32 --no-prove"
    sent = {}
    for divide in ("matrices", "elements"):
        phases = count_here(4, line.format(divide))["sent"][0]
        sent[divide] = sum(of["bytes"] for phase, of in phases.items() if phase != "norm")
        momentum = phases.get("all-gather momentum", {"bytes": 0})["bytes"]
    matrices = 12 * 32 * 32 * 4
    assert momentum == 2 * matrices * 3 // 4
    assert (sent["elements"] - sent["matrices"]) == momentum
    assert paper.WORK.agrees(1 + momentum / (8 * matrices * 3 / 4))
