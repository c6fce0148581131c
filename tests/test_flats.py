"""A unit with two Flats that different ranks share, as experts will have: what each stage of ZeRO makes of them."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest

from jobs import experts
from minidist.engine import Engine
from ranks import launch

CASES = list(itertools.product(experts.STAGES, (0.0, 0.05), (1, 2)))
# On three ranks one expert is on two of them and the other on one; the other numbers with -m slow.


@cache
def on_ranks(n: int) -> list[list[dict[str, Any]]]:
    return launch("jobs.experts:train_all", n, CASES, timeout=120).values


@cache
def serial(n: int, clip: float, accumulate: int) -> dict[str, Any]:
    return experts.train(Engine(experts.model([0, 1], n), experts.settings(clip, accumulate)))


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_serial_training(case: tuple[str, float, int], n: int) -> None:
    """Losses, the norm, with and without clipping, and both Flats' gradients and parameters."""
    _, clip, accumulate = case
    truth = serial(n, clip, accumulate)
    everyone = [of_rank[CASES.index(case)] for of_rank in on_ranks(n)]
    np.testing.assert_allclose(np.sum([rank["losses"] for rank in everyone], axis=0), truth["losses"], rtol=1e-12)
    assert min(truth["norms"]) > 2 * clip  # clipping does something
    for kind in ("gradients", "parameters"):
        assert {name for rank in everyone for name in rank[kind]} == set(truth[kind])
    for rank in everyone:
        np.testing.assert_allclose(rank["norms"], truth["norms"], rtol=1e-12)
        for kind in ("gradients", "parameters"):
            for name, array in rank[kind].items():
                np.testing.assert_allclose(array, truth[kind][name], rtol=0, atol=1e-13, err_msg=f"{kind} {name}")
